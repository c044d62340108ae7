"use strict";
// Shows the document of status.json, of a node or of a cluster, and polls it.
// Elements are updated in place, so that nothing flickers and the scroll position stays.

const $ = (id) => document.getElementById(id);
const SVG = "http://www.w3.org/2000/svg";
const THEMES = { "": ["◐", "same as the system"], light: ["☀", "light"], dark: ["☾", "dark"] };
const TOKEN = "pyvgpu-token";
const SPAN = "pyvgpu-span";
const POINTS = 60; // of the last minutes
const DAY_POINTS = 288;
const SPANS = { "": "last minutes", day: "last day" };

// ---- elements ---------------------------------------------------------------------------------

function element(tag, settings = {}, ...children) {
  const made = document.createElement(tag);
  for (const [name, value] of Object.entries(settings)) made.setAttribute(name, value);
  made.append(...children);
  return made;
}

function drawn(tag, settings) {
  const made = document.createElementNS(SVG, tag);
  for (const [name, value] of Object.entries(settings)) made.setAttribute(name, value);
  return made;
}

function say(node, text) {
  if (node.textContent !== text) node.textContent = text;
}

function mark(node, name, value) {
  if (node.getAttribute(name) !== value) node.setAttribute(name, value);
}

function hide(node, yes) {
  if (node.hidden !== yes) node.hidden = yes;
}

function place(node, side, ratio) {
  const value = `${Number((100 * ratio).toFixed(3))}%`;
  if (node.style[side] !== value) node.style[side] = value;
}

/* Give a parent one child for each item, in order; existing children are reused by key. */
function keep(parent, items, key, make, update) {
  const before = new Map([...parent.children].map((child) => [child.dataset.key, child]));
  let next = parent.firstElementChild;
  for (const item of items) {
    const name = key(item);
    let child = before.get(name);
    if (child) before.delete(name);
    else {
      child = make(item);
      child.dataset.key = name;
    }
    if (child === next) next = next.nextElementSibling;
    else parent.insertBefore(child, next);
    update(child, item);
  }
  for (const child of before.values()) child.remove();
}

// ---- numbers ----------------------------------------------------------------------------------

const percent = (ratio) => (ratio === null ? "?" : `${Math.round(100 * ratio)} %`); // null: unknown
const share = (ratio) => (ratio < 0.1 && ratio > 0 ? `${(100 * ratio).toFixed(1)} %` : percent(ratio));
const count = (number, one, many = `${one}s`) => `${number.toLocaleString("en")} ${number === 1 ? one : many}`;
const part = (some, all) => (some === null ? null : all > 0 ? Math.min(Math.max(some / all, 0), 1) : 0);

function size(bytes) {
  if (bytes === null) return "?";
  for (const [unit, bits] of [["TiB", 40], ["GiB", 30], ["MiB", 20]]) {
    const number = bytes / 2 ** bits;
    if (number >= 1 || unit === "MiB") {
      return `${number >= 100 ? Math.round(number) : Number(number.toFixed(1))} ${unit}`;
    }
  }
  return "";
}

function clock(text) {
  if (!text) return "";
  const at = new Date(text);
  const day = new Date().toDateString() === at.toDateString() ? "" : `${at.toLocaleDateString()} `;
  return day + at.toLocaleTimeString([], { hour12: false });
}

function duration(seconds) {
  for (const [unit, long] of [["d", 86400], ["h", 3600], ["min", 60]]) {
    if (seconds >= 2 * long) return `${Math.floor(seconds / long)} ${unit}`;
  }
  return `${Math.max(Math.floor(seconds), 0)} s`;
}

// ---- pieces -----------------------------------------------------------------------------------

function pill(node, text, kind) {
  say(node, text);
  mark(node, "class", `pill ${kind}`);
}

const KINDS = {
  "healthy": "good", "runs": "good", "idle": "", "at its limit": "", "cordoned": "warn", "full": "", "suspended": "",
  "gets less than its share": "bad", "out of memory": "bad", "unhealthy": "bad", "trouble": "bad", "unknown": "warn",
  "waits for room": "warn",
};

// How a container is held to its share, and on a device all are; quotas, the usual way, are not named.
const MEANS = {
  "hardware": "MIG", "hardware+quota": "MIG and quota", "mps": "MPS", "time-slices": "time slices", "whole-device": "whole device",
};

function meter(kind) {
  return element("div", { class: `meter ${kind}`, "aria-hidden": "true" },
    element("span", { class: "fill" }), element("span", { class: "mark" }));
}

function fill(node, ratio, at) {
  const [bar, line] = node.children;
  place(bar, "width", ratio ?? 0);
  hide(line, !at);
  if (at) place(line, "left", at);
}

function chart(kind) {
  const made = drawn("svg", { class: `chart ${kind}`, viewBox: `0 0 ${POINTS - 1} 100`, preserveAspectRatio: "none", role: "img" });
  made.append(drawn("rect", { class: "ground", x: 0, y: 0, width: POINTS - 1, height: 100 }),
    drawn("path", { class: "area" }), drawn("path", { class: "line" }), drawn("line", { class: "allocation", x1: 0, x2: POINTS - 1 }));
  return made;
}

/* Draw a line chart of *count* points, the newest value on the right; the full height is *most*.
   Where a value is null, nothing was measured: the line has a gap. */
function draw(node, values, most, allocated, label, count = POINTS) {
  const [, area, line, allocation] = node.children;
  const shown = values.slice(-count);
  const x = (at) => Number(((count - shown.length + at) * (POINTS - 1) / (count - 1)).toFixed(2));
  const runs = [];
  shown.forEach((value, at) => {
    if (value === null) return;
    if (!at || shown[at - 1] === null) runs.push({ first: x(at), points: [] });
    runs.at(-1).last = x(at);
    runs.at(-1).points.push(`${x(at)},${(100 - 100 * part(value, most)).toFixed(1)}`);
  });
  mark(line, "d", runs.map((run) => `M${run.points.join("L")}`).join(""));
  mark(area, "d", runs.map((run) => `M${run.first},100L${run.points.join("L")}L${run.last},100Z`).join(""));
  const high = (100 - 100 * part(allocated ?? 0, most)).toFixed(1);
  mark(allocation, "visibility", allocated ? "visible" : "hidden");
  mark(allocation, "y1", high);
  mark(allocation, "y2", high);
  mark(node, "aria-label", label);
}

/* The lines of a device or of the cluster in the chosen span: values by name, points, the span in words. */
function past(subject, seconds) {
  const day = $("span").dataset.span === "day";
  const lines = day ? subject.day : subject.lines;
  const length = Object.values(lines).find(Array.isArray).length;
  return { lines, count: day ? DAY_POINTS : POINTS, text: duration(length * (day ? lines.seconds : seconds)) };
}

const head = (title, ...more) => element("div", { class: "head" }, element("h2", {}, title), ...more);

function tiles(parent, list) {
  keep(parent, list, (tile) => tile.name,
    (tile) => element("div", {}, element("dt", {}, tile.name), element("dd", { class: "number" }),
      element("dd", { class: "quiet number" }), ...(tile.bar ? [element("dd", {}, meter(tile.bar))] : [])),
    (node, tile) => {
      say(node.children[1], tile.value);
      say(node.children[2], tile.more);
      if (tile.bar) fill(node.children[3].firstChild, tile.used, tile.allocated);
    });
}

function table(names, caption) {
  return element("table", { role: "table" }, element("caption", { class: "unseen" }, caption),
    element("thead", { role: "rowgroup" }, element("tr", { role: "row" },
      ...names.map((name) => element("th", { scope: "col", role: "columnheader" }, name)))),
    element("tbody", { role: "rowgroup" }));
}

const cell = (kind, ...children) => element("td", { class: kind, role: "cell" }, ...children);
const rowHead = (...children) => element("th", { scope: "row", role: "rowheader" }, ...children);
const line = (kind = "number") => element("span", { class: kind });

function listed(parent, items, key, update) {
  keep(parent, items, key,
    () => element("li", {}, element("time", { class: "quiet number" }),
      element("div", {}, element("strong"), element("span", { class: "quiet" })), element("div", { class: "text" })), update);
}

function shownEvents(section, events) {
  hide(section, !events.length);
  listed(section.querySelector("ol"), events, (event) => `${event.at} ${event.object} ${event.reason}`, (node, event) => {
    mark(node.children[0], "datetime", event.at);
    say(node.children[0], clock(event.at));
    say(node.children[1].firstChild, event.reason);
    say(node.children[1].lastChild, event.object);
    say(node.children[2], event.text);
  });
}

function shownProblems(section, problems) {
  hide(section, !problems.length);
  keep(section.querySelector("ol"), problems, (problem) => `${problem.object} ${problem.text}`,
    () => element("li", {}, element("strong"), element("span")), (node, problem) => {
      say(node.firstChild, problem.object);
      say(node.lastChild, problem.text);
    });
}

const section = (name, title, ...more) =>
  element("section", { class: `card ${name}`, "aria-label": title }, head(title), ...more);

// ---- a node -----------------------------------------------------------------------------------

function makeDevice(device, noun) {
  return element("section", { class: "card device", "aria-label": `${device.label} ${device.model}` },
    element("div", { class: "head" }, element("h2", {}, device.label), line(""), element("span", { class: "pill" }),
      element("code", { class: "quiet end" }, device.uuid), element("p", { class: "why" })),
    element("div", { class: "gauges" },
      ...["time", "memory"].map((kind) => element("div", {},
        element("h3", {}, kind === "time" ? "Time" : "Memory"), line("quiet number"), meter(kind), chart(kind),
        element("div", { class: "scale quiet", "aria-hidden": "true" }, line(), line())))),
    table([noun, "Time", "Last minutes", "Memory", "State"], `${noun}s with a part of ${device.label}`));
}

function updateDevice(node, device, seconds) {
  const [top, gauges, containers] = node.children;
  say(top.children[1], [device.model, MEANS[device.isolation]].filter(Boolean).join(", "));
  pill(top.children[2], device.state, KINDS[device.state] ?? "");
  say(top.children[4], device.why);
  hide(top.children[4], !device.why);
  const [time, memory] = gauges.children;
  const { lines, count: points, text } = past(device, seconds);
  say(time.children[1], `${percent(device.used)} used, ${percent(device.allocated)} allocated`);
  fill(time.children[2], part(device.used, 1), part(device.allocated, 1));
  draw(time.children[3], lines.used, 1000, 1000 * device.allocated, `Time of ${device.label} in the last ${text}: now ${percent(device.used)}`, points);
  const all = device.memoryBytes;
  say(memory.children[1], `${size(device.usedBytes)} used, ${size(device.allocatedBytes)} allocated of ${size(all)}`);
  fill(memory.children[2], part(device.usedBytes, all), part(device.allocatedBytes, all));
  draw(memory.children[3], lines.memoryMiB, all / 2 ** 20, device.allocatedBytes / 2 ** 20, `Memory of ${device.label} in the last ${text}: now ${size(device.usedBytes)}`, points);
  for (const one of [time, memory]) {
    say(one.children[4].firstChild, `${text} ago`);
    say(one.children[4].lastChild, "now");
  }
  hide(containers, !device.containers.length);
  keep(containers.tBodies[0], device.containers, (one) => `${one.namespace}/${one.pod}/${one.container}`, makeContainer, updateContainer);
}

function makeContainer(container) {
  const row = element("tr", { role: "row" },
    rowHead(container.pod, element("span", { class: "quiet" }, [container.namespace, container.container].filter(Boolean).join(" / "))),
    cell("wide", line(), meter("time")), cell("past", chart("time spark")), cell("wide", line(), meter("memory")),
    cell("state", element("span", { class: "pill" }), element("span", { class: "quiet number" })));
  row.children[1].dataset.name = "Time";
  row.children[3].dataset.name = "Memory";
  return row;
}

function updateContainer(row, container) {
  const [, time, past, memory, state] = row.children;
  const upTo = container.limit > container.allocated ? `, up to ${percent(container.limit)}` : "";
  say(time.firstChild, `${share(container.used)} of ${percent(container.allocated)}${upTo}`);
  fill(time.lastChild, part(container.used, container.limit), upTo ? part(container.allocated, container.limit) : null);
  draw(past.firstChild, container.lines.used, 1000 * container.limit, upTo ? 1000 * container.allocated : null, `Time in the last minutes: now ${share(container.used)}`);
  say(memory.firstChild, `${size(container.usedBytes)} of ${size(container.allocatedBytes)}`);
  fill(memory.lastChild, part(container.usedBytes, container.allocatedBytes), null);
  pill(state.firstChild, container.state, KINDS[container.state] ?? "");
  say(state.lastChild, [
    MEANS[container.isolation],
    container.hostBytes ? `${size(container.hostBytes)} in host memory` : "",
    container.waitingSeconds ? `for ${count(container.waitingSeconds, "second", "seconds")}` : "",
    container.refused ? count(container.refused, "allocation refused", "allocations refused") : "",
  ].filter(Boolean).join(", "));
}

function showNode(view, found) {
  if (view.dataset.kind !== `node ${found.node}`) {
    view.dataset.kind = `node ${found.node}`;
    view.replaceChildren(element("dl", { class: "tiles" }), section("problems", "Problems", element("ol", { class: "list plain" })),
      element("div", { class: "devices" }), section("events", "Events", element("ol", { class: "list" })));
  }
  const [top, problems, devices, events] = view.children;
  const sums = found.totals;
  const noun = found.holder === "run" ? "Run" : "Container";
  const short = found.devices.flatMap((device) => device.containers).filter((container) => KINDS[container.state] === "bad").length;
  const spare = [sums.unhealthy && `${sums.unhealthy} unhealthy`, sums.cordoned && `${sums.cordoned} cordoned`].filter(Boolean);
  tiles(top, [
    { name: "Devices", value: String(sums.devices), more: spare.join(", ") || "all are healthy" },
    { name: `${noun}s`, value: String(sums.containers), more: short ? `${short} need attention` : found.unbound ? `${found.unbound} are starting` : "all get their shares" },
    { name: "Time", value: percent(part(sums.used, sums.devices)), more: `used, ${percent(part(sums.allocated, sums.devices))} allocated`,
      bar: "time", used: part(sums.used, sums.devices), allocated: part(sums.allocated, sums.devices) },
    { name: "Memory", value: size(sums.usedBytes), more: `used, ${size(sums.allocatedBytes)} allocated of ${size(sums.memoryBytes)}`,
      bar: "memory", used: part(sums.usedBytes, sums.memoryBytes), allocated: part(sums.allocatedBytes, sums.memoryBytes) },
  ]);
  shownProblems(problems, found.problems);
  keep(devices, found.devices, (device) => device.uuid, (device) => makeDevice(device, noun), (node, device) => updateDevice(node, device, found.seconds));
  shownEvents(events, found.events);
  say($("title"), found.node);
  $("up").hidden = !asked().node;
}

// ---- a cluster --------------------------------------------------------------------------------

const SHOW = [["all", "all"], ["trouble", "with a problem"], ["room", "with room"], ["full", "full"]];

function makeFilters() {
  const search = element("input", { id: "search", type: "search", autocomplete: "off", spellcheck: "false" });
  const show = element("select", { id: "show" }, ...SHOW.map(([value, text]) => element("option", { value }, text)));
  const step = (by, text) => {
    const made = element("button", { type: "button" }, text);
    made.addEventListener("click", () => go({ ...asked(), page: Number(asked().page ?? 1) + by }));
    return made;
  };
  const made = element("form", { class: "filters", role: "search" },
    element("div", {}, element("label", { for: "search" }, "Node"), search),
    element("div", {}, element("label", { for: "show" }, "Show"), show),
    element("div", { class: "end" }, element("span", { class: "quiet number", role: "status" }), step(-1, "Previous"), step(1, "Next")));
  search.value = asked().search ?? "";
  show.value = asked().show ?? "all";
  const changed = () => go({ search: search.value.trim(), show: show.value });
  search.addEventListener("input", changed);
  show.addEventListener("change", changed);
  made.addEventListener("submit", (event) => event.preventDefault());
  return made;
}

const PAST = { time: "Time allocated", memory: "Memory allocated", waits: "Pending pods" };

function showCluster(view, found) {
  if (view.dataset.kind !== "cluster") {
    view.dataset.kind = "cluster";
    const charts = element("div", { class: "gauges three" }, ...["time", "memory", "waits"].map((kind) => element("div", {},
      element("h3", {}, PAST[kind]), chart(kind), element("div", { class: "scale quiet", "aria-hidden": "true" }, line(), line()))));
    const nodes = section("nodes", "Nodes", makeFilters(), table(["Node", "Devices", "Time", "Memory", "State"], "Nodes with devices"));
    const waiting = section("waiting", "Pending pods", table(["Pod", "Requests", "For", "Why"], "Pods that wait for a device"), element("p", { class: "quiet" }));
    view.replaceChildren(element("dl", { class: "tiles" }), section("problems", "Problems", element("ol", { class: "list plain" })),
      section("past", "History", charts), waiting, nodes, section("events", "Events", element("ol", { class: "list" })));
  }
  const [top, problems, lately, waiting, nodes, events] = view.children;
  const sums = found.totals;
  const spare = [sums.unhealthy && `${sums.unhealthy} unhealthy`, sums.cordoned && `${sums.cordoned} cordoned`].filter(Boolean);
  const [time, memory] = [part(sums.allocated, sums.devices), part(sums.allocatedBytes, sums.memoryBytes)];
  tiles(top, [
    { name: "Nodes", value: sums.nodes.toLocaleString("en"), more: sums.trouble ? `${sums.trouble.toLocaleString("en")} with a problem` : "all are healthy" },
    { name: "Devices", value: sums.devices.toLocaleString("en"), more: spare.join(", ") || "all are healthy" },
    { name: "Pods", value: sums.pods.toLocaleString("en"), more: found.waiting.count ? `${found.waiting.count.toLocaleString("en")} wait` : "none waits" },
    { name: "Time", value: percent(time), more: `allocated of ${count(sums.devices, "device")}`, bar: "time", used: time, allocated: null },
    { name: "Memory", value: percent(memory), more: `${size(sums.allocatedBytes)} allocated of ${size(sums.memoryBytes)}`, bar: "memory", used: memory, allocated: null },
  ]);
  shownProblems(problems, found.problems);
  Object.entries(PAST).forEach(([kind, name], at) => {
    const key = ["allocated", "memory", "waiting"][at];
    const { lines, count: points, text } = past(found, 5);
    const values = lines[key];
    const now = found.lines[key].at(-1) ?? 0;
    const parts = kind !== "waits"; // thousandths of all, or pods
    const one = lately.lastChild.children[at];
    draw(one.children[1], values, parts ? 1000 : Math.max(10, ...values), null, `${name} in the last ${text}: now ${parts ? percent(now / 1000) : now}`, points);
    say(one.lastChild.firstChild, `${text} ago`);
    say(one.lastChild.lastChild, parts ? percent(now / 1000) : String(now));
  });
  showWaiting(waiting, found);
  showNodes(nodes, found.nodes);
  shownEvents(events, found.events);
  say($("title"), found.cluster);
  $("up").hidden = true;
}

function showWaiting(section, found) {
  const { count: all, rows } = found.waiting;
  hide(section, !all);
  keep(section.querySelector("tbody"), rows, (waiting) => waiting.pod,
    (waiting) => element("tr", { role: "row" }, rowHead(waiting.pod), cell("", line()), cell("number", line()), cell("", line("why"))),
    (row, waiting) => {
      say(row.children[1].firstChild, waiting.asks);
      say(row.children[2].firstChild, duration((Date.parse(found.at) - Date.parse(waiting.since)) / 1000));
      say(row.children[3].firstChild, waiting.why || "not determined yet");
    });
  say(section.lastChild, all > rows.length ? `and ${count(all - rows.length, "other")}` : "");
}

function showNodes(section, found) {
  const [, filters, rows] = section.children;
  const [text, before, next] = filters.lastChild.children;
  say(text, found.pages > 1 ? `page ${found.page} of ${found.pages.toLocaleString("en")}, ${count(found.count, "node")}` : count(found.count, "node"));
  before.disabled = found.page <= 1;
  next.disabled = found.page >= found.pages;
  keep(rows.tBodies[0], found.rows, (entry) => entry.name,
    (entry) => {
      const link = element("a", { href: `#${new URLSearchParams({ node: entry.name })}` }, entry.name);
      const row = element("tr", { role: "row" }, rowHead(link, line("quiet")), cell("", element("div", { class: "minis", role: "img" })),
        cell("wide", line(), meter("time")), cell("wide", line(), meter("memory")), cell("state", element("span", { class: "pill" }), element("span", { class: "quiet why" })));
      row.children[2].dataset.name = "Time";
      row.children[3].dataset.name = "Memory";
      return row;
    },
    (row, entry) => {
      const [name, devices, time, memory, state] = row.children;
      say(name.lastChild, `${entry.model ? `${entry.devices.length} × ${entry.model}, ` : ""}${count(entry.pods, "pod")}`);
      mark(devices.firstChild, "aria-label", entry.devices.map((one) => `${one.label}: ${percent(one.allocated)} of time, ${percent(one.memory)} of memory allocated${one.state === "healthy" ? "" : `, ${one.state}`}`).join("; ") || "no device");
      keep(devices.firstChild, entry.devices, (one) => one.label,
        () => element("span", {}, element("i"), element("i")),
        (node, one) => {
          mark(node, "class", `mini ${one.state}`);
          place(node.children[0], "height", part(one.allocated, 1));
          place(node.children[1], "height", part(one.memory, 1));
        });
      const ratios = [part(entry.allocated, entry.devices.length), part(entry.allocatedBytes, entry.memoryBytes)];
      [time, memory].forEach((one, at) => {
        say(one.firstChild, `${percent(ratios[at])} allocated`);
        fill(one.lastChild, ratios[at], null);
      });
      pill(state.firstChild, entry.state, KINDS[entry.state] ?? "");
      say(state.lastChild, entry.why);
    });
}

// ---- polling ----------------------------------------------------------------------------------

let tag = null;
let timer = 0;
let asking = null; // the current request
let seen = 0; // time of the last response, in milliseconds
let latest = null; // the document on the page

const asked = () => Object.fromEntries(new URLSearchParams(location.hash.slice(1)));
const stored = (where, name) => { try { return where.getItem(name); } catch { return null; } };
const store = (where, name, value) => { try { where.setItem(name, value); } catch { /* not persistent then */ } };

function go(wanted) {
  const kept = Object.entries(wanted).filter(([name, value]) => value && !(name === "show" && value === "all") && !(name === "page" && value === 1));
  history.replaceState(null, "", `#${new URLSearchParams(kept)}`);
  changed();
}

function changed() {
  tag = null;
  void ask();
}

async function ask() {
  clearTimeout(timer);
  asking?.abort();
  const mine = (asking = new AbortController());
  let again = 5;
  try {
    const fields = { Accept: "application/json" };
    const token = stored(sessionStorage, TOKEN);
    if (token) fields.Authorization = `Bearer ${token}`;
    if (tag) fields["If-None-Match"] = tag;
    const answer = await fetch(`status.json?${new URLSearchParams(asked())}`, { headers: fields, cache: "no-store", signal: mine.signal });
    if (answer.status === 401 || answer.status === 403) return login((await answer.json()).error, token);
    if (answer.status !== 304) {
      const found = await answer.json();
      if (!answer.ok) throw new Error(found.error);
      tag = answer.headers.get("ETag");
      again = found.seconds ?? again;
      show(found);
    }
    seen = performance.now();
    $("trouble").hidden = true;
  } catch (error) {
    if (mine.signal.aborted) return undefined;
    say($("trouble"), `No new numbers: ${error instanceof TypeError ? "the server does not answer" : error.message}. Retrying.`);
    $("trouble").hidden = false;
  }
  if (!document.hidden) timer = setTimeout(ask, 1000 * again);
  return showAge();
}

function show(found) {
  const view = $("view");
  latest = found;
  $("login").hidden = true;
  (found.kind === "node" ? showNode : showCluster)(view, found);
  view.hidden = false;
  const wrong = found.problems.length;
  pill($("health"), wrong ? count(wrong, "problem") : "no problems", wrong ? "bad" : "good");
  say($("version"), `pyvgpu ${found.version}`);
  document.title = `${wrong ? `(${wrong}) ` : ""}${$("title").textContent} · pyvgpu`;
}

function login(why, token) {
  if (token) sessionStorage.removeItem(TOKEN);
  $("view").hidden = true;
  $("trouble").hidden = true;
  pill($("health"), "", "");
  say($("login-why"), why);
  $("login").hidden = false;
  $("token").focus();
}

function showAge() {
  say($("age"), seen ? `updated ${duration((performance.now() - seen) / 1000)} ago` : "");
}

function paint(theme) {
  const [sign, name] = THEMES[theme];
  say($("theme"), sign);
  mark($("theme"), "aria-label", `Theme: ${name}`);
  document.documentElement.dataset.theme = theme;
}

function choose(span) {
  $("span").dataset.span = span;
  say($("span"), SPANS[span]);
  mark($("span"), "aria-label", `Charts: ${SPANS[span]}`);
  if (latest && !$("view").hidden) show(latest);
}

$("span").addEventListener("click", () => {
  const next = $("span").dataset.span ? "" : "day";
  store(localStorage, SPAN, next);
  choose(next);
});
$("theme").addEventListener("click", () => {
  const names = Object.keys(THEMES);
  const next = names[(names.indexOf(document.documentElement.dataset.theme) + 1) % names.length];
  store(localStorage, TOKEN.replace("token", "theme"), next);
  paint(next);
});
$("login").addEventListener("submit", (event) => {
  event.preventDefault();
  store(sessionStorage, TOKEN, $("token").value.trim());
  $("token").value = "";
  changed();
});
document.addEventListener("visibilitychange", () => (document.hidden ? clearTimeout(timer) : void ask()));
window.addEventListener("hashchange", changed);
const theme = stored(localStorage, TOKEN.replace("token", "theme"));
paint(theme in THEMES ? theme : "");
choose(stored(localStorage, SPAN) === "day" ? "day" : "");
setInterval(showAge, 1000);
void ask();
