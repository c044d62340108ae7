{{/* What templates share. */}}

{{- define "pyvgpu.image" -}}
{{ .Values.image.name }}:{{ .Values.image.tag | default .Chart.AppVersion }}
{{- end -}}

{{- define "pyvgpu.fastExitImage" -}}
{{ .Values.fastExitImage.name }}:{{ .Values.fastExitImage.tag | default .Chart.AppVersion }}
{{- end -}}

{{/* Of everything that is made, so that it is found. */}}
{{- define "pyvgpu.labels" -}}
{app.kubernetes.io/name: pyvgpu, app.kubernetes.io/instance: {{ .Release.Name }}}
{{- end -}}

{{/* The same, and those by which Prometheus' operator selects. */}}
{{- define "pyvgpu.monitoringLabels" -}}
app.kubernetes.io/name: pyvgpu
app.kubernetes.io/instance: {{ .Release.Name }}
{{- with .Values.monitoring.labels }}
{{- toYaml . | nindent 0 }}
{{- end }}
{{- end -}}

{{/* Where pods go; of the values of one part. */}}
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

{{/* Of a pod on any node: no root, and nothing of the node's. */}}
{{- define "pyvgpu.podSecurity" -}}
{runAsNonRoot: true, runAsUser: 65534, seccompProfile: {type: RuntimeDefault}}
{{- end -}}

{{- define "pyvgpu.containerSecurity" -}}
{allowPrivilegeEscalation: false, readOnlyRootFilesystem: true, capabilities: {drop: [ALL]}}
{{- end -}}

{{/* Of a container that needs folders of its node: root, since kubelet's sockets and the runtime's are. */}}
{{- define "pyvgpu.nodeSecurity" -}}
{runAsUser: 0, allowPrivilegeEscalation: false, readOnlyRootFilesystem: true, capabilities: {drop: [ALL]}, seccompProfile: {type: RuntimeDefault}}
{{- end -}}

{{/* The agent, as the API server calls it. */}}
{{- define "pyvgpu.agent" -}}
system:serviceaccount:{{ .Values.agentNamespace.name }}:agent
{{- end -}}

{{/* How kube-scheduler is told of our extender: what stands under `extenders:` but for the address
and the certificates. */}}
{{- define "pyvgpu.extender" -}}
enableHTTPS: true
filterVerb: filter
prioritizeVerb: prioritize
bindVerb: bind
preemptVerb: preempt
weight: 10
httpTimeout: 30s # a gang waits up to 20 s for its last pod
nodeCacheCapable: true # it is sent names: 66 kB for 5,000 nodes, not 24 MB
ignorable: false # without it pods with devices wait; all others do not
managedResources:
- {name: pyvgpu.io/vcore, ignoredByScheduler: false}
- {name: pyvgpu.io/vmemory, ignoredByScheduler: false}
{{- if eq .Values.profile "gaia" }}
- {name: tencent.com/vcuda-core, ignoredByScheduler: false}
- {name: tencent.com/vcuda-memory, ignoredByScheduler: false}
{{- end }}
{{- end -}}

{{/* What the second kube-scheduler is told. */}}
{{- define "pyvgpu.kubeSchedulerConfiguration" -}}
apiVersion: kubescheduler.config.k8s.io/v1
kind: KubeSchedulerConfiguration
percentageOfNodesToScore: 100 # else it asks about some nodes alone
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

{{/* Whether pods ask for devices; CEL. */}}
{{- define "pyvgpu.asks" -}}
(object.spec.containers + (has(object.spec.initContainers) ? object.spec.initContainers : [])).exists(c,
    has(c.resources) && [
        has(c.resources.limits) ? c.resources.limits : {},
        has(c.resources.requests) ? c.resources.requests : {}
    ].exists(r,
        "pyvgpu.io/vcore" in r || "pyvgpu.io/vmemory" in r
        || "tencent.com/vcuda-core" in r || "tencent.com/vcuda-memory" in r))
{{- end -}}

{{/* Whether a pod's namespace is one of a pattern; CEL. */}}
{{- define "pyvgpu.inNamespace" -}}
request.namespace.matches({{ printf "^%s$" (. | replace "[!" "[^" | replace "*" ".*" | replace "?" ".") | toJson }})
{{- end -}}

{{/* Annotations in which components say what they have decided, beside those of predicates; CEL. */}}
{{- define "pyvgpu.stateAnnotations" -}}
["pyvgpu.io/devices", "pyvgpu.io/sidecar-stop", "pyvgpu.io/swapped", "tencent.com/gpu-assigned"]
{{- end -}}

{{/* The node that a token names; CEL. */}}
{{- define "pyvgpu.tokensNode" -}}
request.userInfo.?extra[?"authentication.kubernetes.io/node-name"].orValue([""])[0]
{{- end -}}
