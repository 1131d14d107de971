# What every page takes for granted, and pieces for what only some do.

KINDS=backups,restores,schedules,deletebackuprequests,downloadrequests,serverstatusrequests
KINDS+=,backupstoragelocations,volumesnapshotlocations,volumepluginbackups,volumepluginrestores

# Before the first page: locations at Amazon's lead to the S3 server of the test.
once() {
  kubectl apply -f - <<YAML
apiVersion: admissionregistration.k8s.io/v1
kind: MutatingAdmissionPolicy
metadata: {name: amazon}
spec:
  matchConstraints:
    resourceRules:
      - apiGroups: [velero.io]
        apiVersions: [v1]
        operations: [CREATE, UPDATE]
        resources: [backupstoragelocations]
  matchConditions:
    - name: is-at-amazon
      expression: >-
        object.spec.provider == 'aws' && has(object.spec.config) && !('s3Url' in object.spec.config)
  failurePolicy: Fail
  reinvocationPolicy: Never
  mutations:
    - patchType: JSONPatch
      jsonPatch:
        expression: >-
          [JSONPatch{op: "add", path: "/spec/config/s3Url", value: "$S3_URL"},
           JSONPatch{op: "add", path: "/spec/config/s3ForcePathStyle", value: "true"},
           JSONPatch{op: "add", path: "/spec/config/region", value: "us-east-1"}]
---
apiVersion: admissionregistration.k8s.io/v1
kind: MutatingAdmissionPolicyBinding
metadata: {name: amazon}
spec: {policyName: amazon}
YAML
  namespace velero
  for try in $(seq 120); do
    if bowline backup-location create probe --provider aws --bucket probe --config region=x -o yaml |
      kubectl apply --dry-run=server -o yaml -f - | grep -q "s3Url: $S3_URL"; then
      return
    fi
    sleep 0.5
  done
  echo "the policy does not take effect"
  return 1
}

# Before each page: nothing of the last one is left.
reset() {
  namespace velero
  for one in $(kubectl -n velero get backups,restores -o name); do
    kubectl -n velero patch "$one" --type=merge -p '{"metadata":{"finalizers":null}}'
  done
  kubectl -n velero delete "$KINDS" --all
  kubectl -n velero delete deployments,configmaps,pods,events --all
  kubectl -n velero delete secret cloud cloud-credentials --ignore-not-found
  kubectl -n velero delete lease bowline-server --ignore-not-found
  kubectl delete namespace shop shop-data shop-copy app-shop --ignore-not-found
  kubectl delete -f "$SERVER_ROLES" --ignore-not-found
  rm -rf "${BUCKETS:?}"/*
}

namespace() {
  kubectl create namespace "$1" --dry-run=client -o yaml | kubectl apply -f -
}

# An application in two namespaces.
shop() {
  kubectl apply -f - <<'YAML'
apiVersion: v1
kind: Namespace
metadata: {name: shop}
---
apiVersion: v1
kind: Namespace
metadata: {name: shop-data}
---
apiVersion: v1
kind: ConfigMap
metadata: {name: settings, namespace: shop}
data: {color: blue}
---
apiVersion: v1
kind: Secret
metadata: {name: password, namespace: shop}
stringData: {password: secret}
---
apiVersion: v1
kind: Service
metadata: {name: web, namespace: shop}
spec:
  selector: {app: web}
  ports: [{port: 80}]
---
apiVersion: v1
kind: ConfigMap
metadata: {name: schema, namespace: shop-data}
data: {version: "3"}
YAML
}

# A server with the rights of the full profile, and with flags of its own if need be.
serve() {
  mkdir -p plugins
  kubectl apply -f "$SERVER_ROLES"
  KUBECONFIG=$SERVER_KUBECONFIG AWS_SHARED_CREDENTIALS_FILE=$S3_CREDENTIALS bowline server --metrics-address 0 \
    --plugin-dir plugins --item-operation-sync-frequency 1s "$@" >>server.log 2>&1 &
  echo $! >>servers
}

# A server with a storage location, the default one.
serve_location() {
  mkdir -p backups/main
  serve --filesystem-root backups "$@"
  bowline backup-location create main --provider filesystem --bucket main --default
  kubectl -n velero wait backupstoragelocation/main --for=jsonpath='{.status.phase}'=Available \
    --timeout=2m
}

# What a node would do: when there is a Deployment, it runs a server as that says, with the rights of its account.
play_node() {
  {
    kubectl -n velero wait deployment/bowline --for=create --timeout=10m
    kubectl -n velero get secret cloud-credentials -o jsonpath='{.data.cloud}' | base64 -d >mounted
    mapfile -t words < <(kubectl -n velero get deployment bowline \
      -o jsonpath='{range .spec.template.spec.containers[0].args[*]}{@}{"\n"}{end}')
    mkdir -p plugins
    KUBECONFIG=$SERVER_KUBECONFIG AWS_SHARED_CREDENTIALS_FILE=$HOME/mounted exec bowline "${words[@]}" --metrics-address 0 \
      --plugin-dir plugins
  } >>server.log 2>&1 &
  echo $! >>servers
}

# Ends the servers that `serve` and `play_node` have started, and waits for that.
stop_servers() {
  local server
  for server in $(cat servers 2>/dev/null); do
    kill "$server" 2>/dev/null || continue
    timeout 60 tail --pid="$server" -f /dev/null
  done
  rm -f servers
}
