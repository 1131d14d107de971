# Blocks: look first, back.

begin() {
  kubectl apply -f - <<'YAML'
apiVersion: apps/v1
kind: Deployment
metadata: {name: velero, namespace: velero}
spec:
  replicas: 1
  selector: {matchLabels: {deploy: velero}}
  template:
    metadata: {labels: {deploy: velero}}
    spec:
      containers:
        - name: velero
          image: velero/velero:v1.18.3
          command: [/velero]
          args: [server, --default-backup-ttl=240h]
      initContainers:
        - name: velero-plugin-for-aws
          image: velero/velero-plugin-for-aws:v1.14.3
YAML
  bowline schedule create nightly --schedule '30 2 * * *'
}
