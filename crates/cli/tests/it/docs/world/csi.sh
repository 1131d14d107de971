begin() {
  kubectl apply -f - <<'YAML'
apiVersion: velero.io/v1
kind: VolumePluginBackup
metadata:
  name: nightly-1
  namespace: velero
  labels: {velero.io/backup-name: nightly-20260115023000}
spec: {backup: nightly-20260115023000, volume: pv-1, plugin: velero.io/csi/disk.example.io}
status: {phase: Completed}
YAML
}
