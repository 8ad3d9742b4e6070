{{/* One Deployment: root, component, own (its values), args, env, mounts and volumes (lists), probes. */}}
{{- define "trainwarden.deployment" -}}
apiVersion: apps/v1
kind: Deployment
metadata:
  name: {{ include "trainwarden.name" .root }}-{{ .component }}
  labels:
    {{- include "trainwarden.labels" .root | nindent 4 }}
    app.kubernetes.io/component: {{ .component }}
spec:
  replicas: {{ .own.replicas }}
  selector:
    matchLabels:
      {{- include "trainwarden.selector" .root | nindent 6 }}
      app.kubernetes.io/component: {{ .component }}
  {{- if .recreate }}
  strategy: { type: Recreate }
  {{- end }}
  template:
    metadata:
      {{- include "trainwarden.podMetadata" (dict "root" .root "component" .component) | nindent 6 }}
    spec:
      serviceAccountName: {{ include "trainwarden.name" .root }}-{{ .component }}
      automountServiceAccountToken: {{ .token | default false }}
      enableServiceLinks: false
      {{- include "trainwarden.pullSecrets" .root | nindent 6 }}
      {{- include "trainwarden.placement" .own | nindent 6 }}
      securityContext:
        runAsNonRoot: true
        runAsUser: 10001
        runAsGroup: 10001
        fsGroup: 10001
        seccompProfile: { type: RuntimeDefault }
      terminationGracePeriodSeconds: 30
      containers:
        - name: {{ .component }}
          image: {{ include "trainwarden.image" .root }}
          imagePullPolicy: {{ .root.Values.image.pullPolicy }}
          {{- if .joins }}
          # The token's owner alone may read it, and a mounted Secret is root's.
          command: [sh, -c, 'umask 077 && cp /etc/trainwarden-rendezvous/token /tmp/token && exec trainwarden "$@"', trainwarden]
          {{- end }}
          args:
            {{- toYaml .args | nindent 12 }}
          env:
            {{- include "trainwarden.env" .root | nindent 12 }}
            {{- with .env }}
            {{- toYaml . | nindent 12 }}
            {{- end }}
          ports:
            - name: {{ .port.name }}
              containerPort: {{ .port.number }}
          startupProbe:
            {{- include "trainwarden.asks" . | nindent 12 }}
            timeoutSeconds: 5
            periodSeconds: 5
            failureThreshold: 24
          livenessProbe:
            {{- include "trainwarden.asks" . | nindent 12 }}
            timeoutSeconds: 5
            periodSeconds: 30
            failureThreshold: 4
          {{- with .ready }}
          readinessProbe:
            httpGet: { path: {{ . }}, port: {{ $.port.name }} }
            timeoutSeconds: 5
            periodSeconds: 10
          {{- end }}
          securityContext:
            allowPrivilegeEscalation: false
            readOnlyRootFilesystem: true
            capabilities: { drop: [ALL] }
          resources:
            {{- toYaml .own.resources | nindent 12 }}
          volumeMounts:
            {{- include "trainwarden.mounts" .root | nindent 12 }}
            - name: state
              mountPath: /var/lib/trainwarden
            {{- with .mounts }}
            {{- toYaml . | nindent 12 }}
            {{- end }}
            {{- if .joins }}
            - name: rendezvous-token
              mountPath: /etc/trainwarden-rendezvous
              readOnly: true
            {{- end }}
      volumes:
        {{- include "trainwarden.volumes" .root | nindent 8 }}
        - name: state
          emptyDir: {}
        {{- with .volumes }}
        {{- toYaml . | nindent 8 }}
        {{- end }}
        {{- if .joins }}
        - name: rendezvous-token
          secret:
            secretName: {{ required "rendezvous.tokenSecret: name a Secret with the key token, or set rendezvous.enabled=false" .root.Values.rendezvous.tokenSecret }}
            defaultMode: 0440
        {{- end }}
{{- end }}

{{- define "trainwarden.asks" -}}
{{- if .speechless }}
tcpSocket: { port: {{ .port.name }} }
{{- else }}
httpGet: { path: {{ .health }}, port: {{ .port.name }} }
{{- end }}
{{- end }}
