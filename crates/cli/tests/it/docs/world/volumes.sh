# Blocks: who takes snapshots, the snapshot type, watch it, describe it.

before_2() {
  mkdir -p backups/main
  bowline backup-location create main --provider filesystem --bucket main --default
}

before_3() {
  kubectl -n velero delete backup before-upgrade
  kubectl apply -f - <<'YAML'
apiVersion: velero.io/v1
kind: Backup
metadata: {name: before-upgrade, namespace: velero}
spec: {storageLocation: main}
status:
  phase: InProgress
  freezeWindows:
    - {namespace: shop, pod: db-0, milliseconds: 120, startTimestamp: "2026-01-02T03:04:05Z"}
    - {namespace: shop, pod: db-1, milliseconds: 95, startTimestamp: "2026-01-02T03:04:05Z"}
---
apiVersion: velero.io/v1
kind: VolumePluginBackup
metadata:
  name: snap-0a1b
  namespace: velero
  labels: {velero.io/backup-name: before-upgrade}
spec: {backup: before-upgrade, volume: pv-1, plugin: example.io/disks}
status:
  phase: Completed
  snapshotID: snap-0a1b
  startTimestamp: "2026-01-02T03:04:05Z"
  completionTimestamp: "2026-01-02T03:05:25Z"
  progress: {bytesDone: 4294967296, totalBytes: 4294967296}
---
apiVersion: velero.io/v1
kind: VolumePluginBackup
metadata:
  name: snap-0a1c
  namespace: velero
  labels: {velero.io/backup-name: before-upgrade}
spec: {backup: before-upgrade, volume: pv-2, plugin: example.io/disks}
status:
  phase: InProgress
  snapshotID: snap-0a1c
  startTimestamp: "2026-01-02T03:04:05Z"
  progress: {bytesDone: 1073741824, totalBytes: 4294967296}
YAML
}
