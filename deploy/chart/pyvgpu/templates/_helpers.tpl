{{/* Shared template helpers. */}}

{{- define "pyvgpu.image" -}}
{{ .Values.image.name }}:{{ .Values.image.tag | default .Chart.AppVersion }}
{{- end -}}

{{- define "pyvgpu.fastExitImage" -}}
{{ .Values.fastExitImage.name }}:{{ .Values.fastExitImage.tag | default .Chart.AppVersion }}
{{- end -}}

{{/* Labels of every object of the chart. */}}
{{- define "pyvgpu.labels" -}}
{app.kubernetes.io/name: pyvgpu, app.kubernetes.io/instance: {{ .Release.Name }}}
{{- end -}}

{{/* The same, and the labels by which Prometheus' operator selects. */}}
{{- define "pyvgpu.monitoringLabels" -}}
app.kubernetes.io/name: pyvgpu
app.kubernetes.io/instance: {{ .Release.Name }}
{{- with .Values.monitoring.labels }}
{{- toYaml . | nindent 0 }}
{{- end }}
{{- end -}}

{{/* Scheduling fields of a pod, from the values of one component. */}}
{{- define "pyvgpu.placing" -}}
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

{{- define "pyvgpu.pullSecrets" -}}
{{- with .Values.imagePullSecrets }}
imagePullSecrets: {{- toYaml . | nindent 0 }}
{{- end }}
{{- end -}}

{{/* Security context of a pod that is not root and mounts nothing of the node. */}}
{{- define "pyvgpu.podSecurity" -}}
{runAsNonRoot: true, runAsUser: 65534, seccompProfile: {type: RuntimeDefault}}
{{- end -}}

{{- define "pyvgpu.containerSecurity" -}}
{allowPrivilegeEscalation: false, readOnlyRootFilesystem: true, capabilities: {drop: [ALL]}}
{{- end -}}

{{/* Security context of a container that mounts folders of its node: root, since the sockets of kubelet and the runtime belong to root. */}}
{{- define "pyvgpu.nodeSecurity" -}}
{runAsUser: 0, allowPrivilegeEscalation: false, readOnlyRootFilesystem: true, capabilities: {drop: [ALL]}, seccompProfile: {type: RuntimeDefault}}
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
- urlPrefix: https://{{ .Values.scheduler.clusterIP | default (printf "pyvgpu-scheduler.%s.svc" .Release.Namespace) }}/scheduler
  tlsConfig:
    serverName: pyvgpu-scheduler.{{ .Release.Namespace }}.svc
    caFile: /extender/ca.crt
    certFile: /extender/client.crt
    keyFile: /extender/client.key
  {{- include "pyvgpu.extender" . | nindent 2 }}
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
