#!/bin/sh
# What a job in somebody's CI does with the `velero` that it finds in its PATH: back an application up,
# lose it, bring it back, look after schedules, and tidy up. What it has found out goes to standard
# output, one fact a line; what the commands say goes to standard error.
set -eu

app=ci-shop
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

# The first value of a key in JSON, whatever its indentation.
field() {
    tr ',{}' '\n\n\n' |
        sed -n "s/^[[:space:]]*\"$1\":[[:space:]]*\"\{0,1\}\([^\"]*\)\"\{0,1\}[[:space:]]*\$/\1/p" |
        sed 's/[[:space:]]*$//' | head -n 1
}

# fact WHAT VALUE
fact() {
    echo "$1: $2"
}

# Whether a command succeeds, as a word.
whether() {
    if "$@" >"$work/said" 2>&1; then echo yes; else echo no; fi
    cat "$work/said" >&2
}

# patiently COMMAND...: tries it until it succeeds, two minutes at most.
patiently() {
    tries=0
    until "$@" >"$work/said" 2>&1; do
        tries=$((tries + 1))
        if [ "$tries" -gt 120 ]; then
            echo "waited in vain: $*" >&2
            cat "$work/said" >&2
            exit 70
        fi
        sleep 1
    done
}

is_gone() {
    ! velero "$1" get "$2"
}

is_in_phase() {
    [ "$(velero "$1" get "$2" -o json | field phase)" = "$3" ]
}

has() {
    kubectl get -n "$app" "$1"
}

has_replica_set() {
    [ -n "$(kubectl get -n "$app" replicasets -o name)" ]
}

make_application() {
    kubectl create namespace "$app" >&2
    kubectl apply -f - >&2 <<'EOF'
apiVersion: v1
kind: ConfigMap
metadata: {name: settings, namespace: ci-shop}
data: {currency: thaler}
---
apiVersion: v1
kind: Secret
metadata: {name: key, namespace: ci-shop}
stringData: {key: opens the till}
---
apiVersion: v1
kind: Service
metadata: {name: web, namespace: ci-shop}
spec: {ports: [{port: 80}]}
---
apiVersion: apps/v1
kind: Deployment
metadata: {name: web, namespace: ci-shop}
spec:
  replicas: 0
  selector: {matchLabels: {app: web}}
  template:
    metadata: {labels: {app: web}}
    spec: {containers: [{name: main, image: "example.io/none:1"}]}
EOF
    patiently has configmap/kube-root-ca.crt
    patiently has serviceaccount/default
    patiently has_replica_set
}

velero version --client-only >&2
patiently is_in_phase backup-location default Available
fact "locations that are available" "$(velero backup-location get | grep -c Available)"
make_application

# Back up.
velero backup create nightly --include-namespaces "$app" --labels team=shop --ttl 2h \
    --exclude-resources events,events.events.k8s.io --wait >&2
velero backup get nightly -o json >"$work/backup.json"
for key in phase itemsBackedUp totalItems ttl team storageLocation; do
    fact "backup $key" "$(field "$key" <"$work/backup.json")"
done
fact "backups of the team" "$(velero backup get -l team=shop -o json | grep -c '"kind": "Backup"')"
fact "backup in the table" "$(velero backup get | sed -n 's/^\(nightly\)  *\([A-Za-z]*\) .*/\1 \2/p')"
velero backup describe nightly --details --colorized=false >"$work/described"
fact "backup described" "$(sed -n 's/^Phase:  *//p' "$work/described")"
fact "items described" "$(sed -n 's/^Items backed up:  *//p' "$work/described")"
fact "as yaml" "$(velero get backups nightly -o yaml | sed -n 's/^  phase: //p')"
fact "described as json" "$(velero backup describe nightly -o json | field phase)"
velero backup logs nightly >"$work/log"
fact "log has lines" "$(grep -q . "$work/log" && echo yes)"
fact "errors in the log" "$(grep -c 'level=error' "$work/log" || true)"
velero backup download nightly -o "$work/nightly.tar.gz" >&2
tar -tzf "$work/nightly.tar.gz" | grep -v '/$' | LC_ALL=C sort | sed 's/^/in the archive: /'

# What would be made is shown, and is not made.
velero backup create shown --include-namespaces "$app" --exclude-resources secrets --ttl 3h \
    --snapshot-volumes=false -o yaml >"$work/shown.yaml"
for key in kind ttl snapshotVolumes; do
    fact "shown $key" "$(sed -n "s/^ *$key: //p" "$work/shown.yaml")"
done
fact "and made" "$(whether velero backup get shown)"

# Lose it, and bring it back.
kubectl delete namespace "$app" --wait=true --timeout=120s >&2
velero restore create nightly-back --from-backup nightly --wait >&2
velero restore get nightly-back -o json >"$work/restore.json"
for key in phase itemsRestored totalItems backupName; do
    fact "restore $key" "$(field "$key" <"$work/restore.json")"
done
velero restore describe nightly-back --colorized=false >"$work/described"
fact "restore described" "$(sed -n 's/^Phase:  *//p' "$work/described")"
velero restore logs nightly-back >"$work/log"
fact "errors in the log" "$(grep -c 'level=error' "$work/log" || true)"
fact "currency" "$(kubectl get -n "$app" configmap settings -o 'jsonpath={.data.currency}')"
fact "deployments" "$(kubectl get -n "$app" deployments -o name)"

velero create restore copy --from-backup nightly --namespace-mappings "$app:$app-copy" \
    --include-resources configmaps --selector '!nothing' -w >&2
fact "configmaps of the copy" "$(kubectl get -n "$app-copy" configmaps -o name | tr '\n' ' ')"
fact "restores" "$(velero restore get -o json | grep -c '"kind": "Restore"')"
velero restore delete copy --confirm >&2
patiently is_gone restore copy
kubectl delete namespace "$app-copy" --wait=true --timeout=120s >&2

# Schedules.
velero schedule create ci --schedule '0 3 * * *' --include-namespaces "$app" --ttl 1h >&2
patiently is_in_phase schedule ci Enabled
velero schedule get ci -o json >"$work/schedule.json"
fact "schedule" "$(field schedule <"$work/schedule.json")"
fact "schedule described" "$(velero schedule describe ci --colorized=false | sed -n 's/^Phase:  *//p')"
velero schedule pause ci >&2
fact "paused" "$(velero schedule get ci -o json | field paused)"
velero schedule unpause ci >&2
fact "unpaused" "$(velero schedule get ci -o json | field paused)"
velero backup create by-hand --from-schedule ci --wait >&2
fact "backup of the schedule" \
    "$(velero backup get -l velero.io/schedule-name=ci -o json | field phase)"
velero schedule delete ci --confirm >&2
patiently is_gone schedule ci

# What cannot be.
fact "backs up twice under a name" \
    "$(whether velero backup create nightly --include-namespaces "$app")"
fact "restores what is not there" "$(whether velero restore create --from-backup nobody)"
fact "describes what is not there" "$(whether velero backup get nobody)"
fact "logs of what is not there" "$(whether velero backup logs nobody)"
fact "knows any flag" "$(whether velero backup get --teleport)"

# Tidy up.
velero backup delete nightly by-hand --confirm >&2
patiently is_gone backup nightly
patiently is_gone backup by-hand
fact "the restore went with its backup" "$(whether is_gone restore nightly-back)"
kubectl delete namespace "$app" --wait=true --timeout=120s >&2
