{{- /*
Names are fixed: a cluster has one mesh, and its objects in other namespaces go by these names.
*/ -}}
{{- define "ctrlmesh.name" -}}ctrlmesh-manager{{- end -}}

{{- define "ctrlmesh.selector" -}}
app.kubernetes.io/name: ctrlmesh
app.kubernetes.io/component: manager
{{- end -}}

{{- define "ctrlmesh.labels" -}}
app.kubernetes.io/name: ctrlmesh
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
{{- end -}}

{{- /*
An image: a list of its own values, what stands in where they are empty, and the tag of the chart.
*/ -}}
{{- define "ctrlmesh.image" -}}
{{- $repo := .repo -}}
{{- $tag := .tag | default .version -}}
{{- printf "%s%s%s" $repo (ternary "@" ":" (hasPrefix "sha256:" $tag)) $tag -}}
{{- end -}}

{{- define "ctrlmesh.image.manager" -}}
{{- $image := .Values.manager.image -}}
{{- $repo := required "manager.image.repo is empty: give the image that you built from deploy/Containerfile, for example registry.example.com/ctrlmesh" $image.repo -}}
{{- include "ctrlmesh.image" (dict "repo" $repo "tag" $image.tag "version" .Chart.AppVersion) -}}
{{- end -}}

{{- define "ctrlmesh.image.proxy" -}}
{{- $image := .Values.proxy.image -}}
{{- if $image.repo -}}
{{- include "ctrlmesh.image" (dict "repo" $image.repo "tag" $image.tag "version" .Chart.AppVersion) -}}
{{- else if $image.tag -}}
{{- include "ctrlmesh.image" (dict "repo" .Values.manager.image.repo "tag" $image.tag "version" .Chart.AppVersion) -}}
{{- else -}}
{{- include "ctrlmesh.image.manager" . -}}
{{- end -}}
{{- end -}}

{{- define "ctrlmesh.image.init" -}}
{{- $image := .Values.init.image -}}
{{- $repo := required "init.image.repo is empty: give the image that you built from deploy/Containerfile.init, for example registry.example.com/ctrlmesh-init" $image.repo -}}
{{- include "ctrlmesh.image" (dict "repo" $repo "tag" $image.tag "version" .Chart.AppVersion) -}}
{{- end -}}
