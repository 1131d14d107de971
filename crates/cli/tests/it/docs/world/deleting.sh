# Blocks: delete one, what is left.

begin() {
  shop
  serve_location
  bowline backup create before-upgrade --include-namespaces shop --wait
}

before_2() {
  stop_servers
  kubectl apply -f - <<'YAML'
apiVersion: velero.io/v1
kind: DeleteBackupRequest
metadata:
  name: before-upgrade-1
  namespace: velero
  labels: {velero.io/backup-name: before-upgrade}
spec: {backupName: before-upgrade}
status:
  phase: Processed
  errors: ["error deleting snapshot snap-0a1b: the volume is busy"]
YAML
}
