{{/* Shared template helpers. */}}

{{- define "pyvgpu.image" -}}
{{ .Values.image.name }}:{{ include "pyvgpu.tag" (list "image.tag" .Values.image.tag) | default .Chart.AppVersion }}
{{- end -}}

{{- define "pyvgpu.fastExitImage" -}}
{{ .Values.fastExitImage.name }}:{{ include "pyvgpu.tag" (list "fastExitImage.tag" .Values.fastExitImage.tag) | default .Chart.AppVersion }}
{{- end -}}

{{/* A tag, which a number would not keep: 1.10 would be 1.1. Of (list VALUE's-name VALUE). */}}
{{- define "pyvgpu.tag" -}}
{{- $tag := index . 1 -}}
{{- if not (kindIs "string" $tag) }}{{ fail (printf "%s=%v: must be a string, such as --set-string %s=0.1.0 (with helm's --set a tag of digits is a number), or in a values file tag: \"0.1.0\"" (index . 0) $tag (index . 0)) }}{{ end -}}
{{ $tag }}
{{- end -}}

{{/* Nothing, if a component's two ports differ. Of (list NAME VALUES). */}}
{{- define "pyvgpu.ports" -}}
{{- $port := (index . 1).port | int -}}
{{- if eq $port ((index . 1).metricsPort | int) }}{{ fail (printf "%s.metricsPort=%d: must differ from %s.port, such as %d" (index . 0) $port (index . 0) (add $port 1)) }}{{ end -}}
{{- end -}}

{{- define "pyvgpu.name" -}}
{{ .Values.nameOverride | default .Chart.Name }}
{{- end -}}

{{/* Labels of every object of the chart. */}}
{{- define "pyvgpu.labels" -}}
{app.kubernetes.io/name: {{ include "pyvgpu.name" . | quote }}, app.kubernetes.io/instance: {{ .Release.Name | quote }}, app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}, app.kubernetes.io/managed-by: {{ .Release.Service }}, app.kubernetes.io/part-of: pyvgpu, helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version | replace "+" "_" | trunc 63 | quote }}}
{{- end -}}

{{/* Labels by which the pods of a component are selected: (list $ COMPONENT). A selector cannot be
changed after creation, so nothing in it depends on the version. */}}
{{- define "pyvgpu.selector" -}}
{{- $root := index . 0 -}}
{app: {{ index . 1 }}, app.kubernetes.io/name: {{ include "pyvgpu.name" $root | quote }}, app.kubernetes.io/instance: {{ $root.Release.Name | quote }}}
{{- end -}}

{{/* Labels and annotations of the pods of a component: (list $ COMPONENT VALUES ANNOTATIONS). The
component's own win over those of the values. */}}
{{- define "pyvgpu.podMetadata" -}}
{{- $values := index . 2 -}}
labels: {{- merge (include "pyvgpu.selector" (list (index . 0) (index . 1)) | fromYaml) ($values.podLabels | default dict) | toYaml | nindent 2 }}
{{- with merge (index . 3) ($values.podAnnotations | default dict) }}
annotations: {{- toYaml . | nindent 2 }}
{{- end }}
{{- end -}}

{{/* The settings of sidecars are read only at start: an annotation that changes with them. */}}
{{- define "pyvgpu.sidecarSettingsNote" -}}
{{- with .Values.sidecar.settings }}
pyvgpu.io/sidecar-settings: {{ toJson . | sha256sum }}
{{- end }}
{{- end -}}

{{/* The same, and the labels by which Prometheus' operator selects. */}}
{{- define "pyvgpu.monitoringLabels" -}}
{{- merge (include "pyvgpu.labels" . | fromYaml) (.Values.monitoring.labels | default dict) | toYaml }}
{{- end -}}

{{/* Scheduling fields of a pod, from the values of one component. */}}
{{- define "pyvgpu.placing" -}}
{{- if .hostNetwork }}
hostNetwork: true
dnsPolicy: ClusterFirstWithHostNet
{{- end }}
{{- with .priorityClassName }}
priorityClassName: {{ . }}
{{- end }}
{{- with .nodeSelector }}
nodeSelector: {{- toYaml . | nindent 2 }}
{{- end }}
{{- with .tolerations }}
tolerations: {{- toYaml . | nindent 0 }}
{{- end }}
{{- with .affinity }}
affinity: {{- toYaml . | nindent 2 }}
{{- end }}
{{- end -}}

{{/* The same of a DaemonSet of the agent. With agent.gpuNodesOnly only nodes with a label that says
that they have a GPU: ours, or one of Node Feature Discovery, GPU Feature Discovery, GKE, EKS, AKS. */}}
{{- define "pyvgpu.agentPlacing" -}}
{{- $values := .Values.agent -}}
{{- if $values.gpuNodesOnly }}
{{- if $values.affinity }}
{{- fail "agent.gpuNodesOnly and agent.affinity exclude each other: use agent.nodeSelector for further rules" }}
{{- end }}
{{- $terms := list -}}
{{- range list "pyvgpu.io/gpu-node" "nvidia.com/gpu.present" "feature.node.kubernetes.io/pci-10de.present" "feature.node.kubernetes.io/pci-0300_10de.present" "feature.node.kubernetes.io/pci-0302_10de.present" }}
{{- $terms = append $terms (dict "matchExpressions" (list (dict "key" . "operator" "In" "values" (list "true")))) }}
{{- end }}
{{- range list "cloud.google.com/gke-accelerator" "k8s.amazonaws.com/accelerator" "kubernetes.azure.com/accelerator" }}
{{- $terms = append $terms (dict "matchExpressions" (list (dict "key" . "operator" "Exists"))) }}
{{- end }}
{{- $affinity := dict "nodeAffinity" (dict "requiredDuringSchedulingIgnoredDuringExecution" (dict "nodeSelectorTerms" $terms)) }}
{{- $values = mergeOverwrite (deepCopy $values) (dict "affinity" $affinity) }}
{{- end }}
{{- include "pyvgpu.placing" $values }}
{{- end -}}

{{- define "pyvgpu.pullSecrets" -}}
{{- with .Values.imagePullSecrets }}
imagePullSecrets: {{- toYaml . | nindent 0 }}
{{- end }}
{{- end -}}

{{/* Security context of a pod that is not root and mounts nothing of the node: (list $ VALUES).
OpenShift assigns each namespace its own user ids. */}}
{{- define "pyvgpu.podSecurity" -}}
{{- $own := dict "runAsNonRoot" true "seccompProfile" (dict "type" "RuntimeDefault") -}}
{{- if not (index . 0).Values.openshift.enabled }}{{ $_ := set $own "runAsUser" 65534 }}{{ end -}}
{{- mergeOverwrite $own (deepCopy ((index . 1).podSecurityContext | default dict)) | toJson -}}
{{- end -}}

{{/* Security context of a container of such a pod: (list $ VALUES). */}}
{{- define "pyvgpu.containerSecurity" -}}
{{- $own := dict "allowPrivilegeEscalation" false "readOnlyRootFilesystem" true "capabilities" (dict "drop" (list "ALL")) -}}
{{- mergeOverwrite $own (deepCopy ((index . 1).securityContext | default dict)) | toJson -}}
{{- end -}}

{{/* Security context of a container that mounts folders of its node: (list $ VALUES). Root, since the
sockets of kubelet and the runtime belong to root. With SELinux only spc_t may open these. */}}
{{- define "pyvgpu.nodeSecurity" -}}
{{- $own := dict "runAsUser" 0 "allowPrivilegeEscalation" false "readOnlyRootFilesystem" true "capabilities" (dict "drop" (list "ALL")) "seccompProfile" (dict "type" "RuntimeDefault") -}}
{{- if (index . 0).Values.openshift.enabled }}{{ $_ := set $own "seLinuxOptions" (dict "type" "spc_t") }}{{ end -}}
{{- mergeOverwrite $own (deepCopy ((index . 1).securityContext | default dict)) | toJson -}}
{{- end -}}

{{/* The agent's user name at the API server. */}}
{{- define "pyvgpu.agent" -}}
system:serviceaccount:{{ .Values.agentNamespace.name }}:agent
{{- end -}}

{{/* The entry under `extenders:` of kube-scheduler's configuration, without the address and the
certificates. */}}
{{- define "pyvgpu.extender" -}}
enableHTTPS: true
filterVerb: filter
prioritizeVerb: prioritize
bindVerb: bind
preemptVerb: preempt
weight: 10
httpTimeout: 30s # a gang waits up to 20 s for its last pod
nodeCacheCapable: true # it is sent names: 66 kB for 5,000 nodes, not 24 MB
ignorable: false # while the extender is down, pods with devices wait; all others do not
managedResources:
- {name: pyvgpu.io/vcore, ignoredByScheduler: false}
- {name: pyvgpu.io/vmemory, ignoredByScheduler: false}
{{- if eq .Values.profile "gaia" }}
- {name: tencent.com/vcuda-core, ignoredByScheduler: false}
- {name: tencent.com/vcuda-memory, ignoredByScheduler: false}
{{- end }}
{{- end -}}

{{/* The fixed address of the scheduler's Service as the host of a URL: IPv6 has brackets. */}}
{{- define "pyvgpu.schedulerAddress" -}}
{{- with .Values.scheduler.clusterIP }}{{ if contains ":" . }}[{{ . }}]{{ else }}{{ . }}{{ end }}{{ end }}
{{- end -}}

{{/* Configuration of the second kube-scheduler. */}}
{{- define "pyvgpu.kubeSchedulerConfiguration" -}}
apiVersion: kubescheduler.config.k8s.io/v1
kind: KubeSchedulerConfiguration
percentageOfNodesToScore: 100 # by default it asks about some of the nodes only
clientConnection: {qps: 1000, burst: 2000}
leaderElection:
  leaderElect: true
  resourceNamespace: {{ .Release.Namespace }}
  resourceName: pyvgpu-kube-scheduler
profiles:
- schedulerName: {{ .Values.kubeScheduler.name }}
extenders:
- urlPrefix: https://{{ include "pyvgpu.schedulerAddress" . | default (printf "pyvgpu-scheduler.%s.svc" .Release.Namespace) }}/scheduler
  tlsConfig:
    serverName: pyvgpu-scheduler.{{ .Release.Namespace }}.svc
    caFile: /extender/ca.crt
    certFile: /extender/client.crt
    keyFile: /extender/client.key
  {{- include "pyvgpu.extender" . | nindent 2 }}
{{- end -}}

{{/* Namespaces where sidecars are left alone, in JSON. */}}
{{- define "pyvgpu.protectedNamespaces" -}}
{{ concat (list "kube-system" .Release.Namespace .Values.agentNamespace.name) .Values.sidecar.protectedNamespaces | uniq | toJson }}
{{- end -}}

{{/* CEL: whether a pod requests devices. */}}
{{- define "pyvgpu.asks" -}}
(object.spec.containers + (has(object.spec.initContainers) ? object.spec.initContainers : [])).exists(c,
    has(c.resources) && [
        has(c.resources.limits) ? c.resources.limits : {},
        has(c.resources.requests) ? c.resources.requests : {}
    ].exists(r,
        "pyvgpu.io/vcore" in r || "pyvgpu.io/vmemory" in r || "pyvgpu.io/vmemory-mib" in r
        || "tencent.com/vcuda-core" in r || "tencent.com/vcuda-memory" in r))
{{- end -}}

{{/* CEL: whether a pod's namespace matches a pattern. */}}
{{- define "pyvgpu.inNamespace" -}}
request.namespace.matches({{ printf "^%s$" (. | replace "[!" "[^" | replace "*" ".*" | replace "?" ".") | toJson }})
{{- end -}}

{{/* CEL: annotations that hold the components' decisions, except those of predicates. */}}
{{- define "pyvgpu.stateAnnotations" -}}
["pyvgpu.io/devices", "pyvgpu.io/sidecar-stop", "pyvgpu.io/swapped", "tencent.com/gpu-assigned"]
{{- end -}}

{{/* CEL: the node named in the token. */}}
{{- define "pyvgpu.tokensNode" -}}
request.userInfo.?extra[?"authentication.kubernetes.io/node-name"].orValue([""])[0]
{{- end -}}

{{/* Not empty if the audit of any node may kill processes. */}}
{{- define "pyvgpu.agentKills" -}}
{{- $kill := "--audit-action=kill" }}
{{- if .Values.agent.audit }}
{{- if has $kill .Values.agent.options }}true{{ end }}
{{- range .Values.agent.nodeConfigs }}{{ if has $kill . }}true{{ end }}{{ end }}
{{- end }}
{{- end }}

{{/* Options of the agent that are values of the chart, which also change the agent's mounts, rights or
neighbours. */}}
{{- define "pyvgpu.agentValues" -}}
--state: agent.state
--run: agent.run
--plugins: agent.kubelet
--plugins-registry: agent.kubelet
--simulate: simulate
--profile: profile
--placement: scheduler.mode
--placement-key: scheduler.mode
--no-require-cdi: agent.privileged
--node-dev: agent.privileged
--node-config: agent.nodeConfigs
--mps: agent.mps
--dynamic-mig: agent.dynamicMig
--suspend: agent.suspend
--oversubscribe: oversubscription.ratio
{{- end }}

{{/* Nothing, if the values of the agents do not contradict each other. */}}
{{- define "pyvgpu.agentChecks" -}}
{{- if and .Values.agent.suspend (not .Values.agent.audit) }}
{{- fail "agent.suspend=true: needs the node's pids, so agent.audit must be true" }}
{{- end }}
{{- if gt (float64 .Values.oversubscription.ratio) 1.0 }}
{{- if not .Values.agent.suspend }}
{{- fail (printf "oversubscription.ratio=%v: suspends idle pods, so agent.suspend must be true" .Values.oversubscription.ratio) }}
{{- end }}
{{- if ne .Values.profile "pyvgpu" }}
{{- fail (printf "oversubscription.ratio=%v: needs profile=pyvgpu" .Values.oversubscription.ratio) }}
{{- end }}
{{- end }}
{{- if and .Values.agent.timeSlicing.replicas (eq .Values.agent.timeSlicing.resource "nvidia.com/gpu") (has "nvidia" .Values.webhook.convert) }}
{{- fail "agent.timeSlicing.resource=nvidia.com/gpu: webhook.convert has nvidia, which makes whole devices of that resource; valid would be agent.timeSlicing.resource=nvidia.com/gpu.shared, or webhook.convert={hami}" }}
{{- end }}
{{- with .Values.agent }}
{{- if and .privileged (or .timeSlicing.replicas (ne .dynamicMig "none") (ne .mps "none")) }}
{{- fail "agent.privileged=true: is for runtimes without CDI, which agent.timeSlicing, agent.dynamicMig and agent.mps need; valid would be agent.privileged=false" }}
{{- end }}
{{- if and (ne .dynamicMig "none") (not (or $.Values.simulate (has "SYS_ADMIN" .capabilities) .securityContext.capabilities .securityContext.privileged)) }}
{{- fail (printf "agent.dynamicMig=%s: the agent needs the capability SYS_ADMIN to create MIG instances, such as agent.capabilities={SYS_ADMIN}" .dynamicMig) }}
{{- end }}
{{- $domain := splitList "/" .timeSlicing.resource | first }}
{{- $others := list "pyvgpu.io/vcore" "pyvgpu.io/vmemory" "pyvgpu.io/vmemory-mib" "pyvgpu.io/device" "pyvgpu.io/control" "tencent.com/vcuda-core" "tencent.com/vcuda-memory" }}
{{- if or (has .timeSlicing.resource $others) (eq $domain "kubernetes.io") (hasSuffix ".kubernetes.io" $domain) }}
{{- fail (printf "agent.timeSlicing.resource=%s: must be an extended resource that is none of our others, such as pyvgpu.io/gpu-shared or nvidia.com/gpu" .timeSlicing.resource) }}
{{- end }}
{{- $folders := dict }}
{{- range $name, $folder := pick . "cdi" "kubelet" "run" "state" }}
{{- with index $folders $folder }}{{ fail (printf "agent.%s=%s: must differ from agent.%s; valid would be the defaults, agent.cdi=/var/run/cdi, agent.kubelet=/var/lib/kubelet, agent.run=/run/pyvgpu-agent and agent.state=/var/lib/pyvgpu" $name $folder .) }}{{ end }}
{{- $_ := set $folders $folder $name }}
{{- end }}
{{- range .options }}
{{- $flag := splitList "=" . | first }}
{{- with index (include "pyvgpu.agentValues" . | fromYaml) $flag }}
{{- fail (printf "agent.options has %s: must be set by the value %s, which also gives the agent what it needs for that (docs/install.md)" $flag .) }}
{{- end }}
{{- end }}
{{- end }}
{{- end }}
