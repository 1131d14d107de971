# Blocks: the server, its folders, the check.

begin() {
  ln -s "$LOCAL_VOLUME" bowline-plugin-local-volume
  cp "$S3_CREDENTIALS" credentials
  # The patch as the page shows it.
  awk '/^# local-volume-patch.yaml/ {on = 1} /^```/ {on = 0} on' "$ROOT/docs/local-volume.md" >local-volume-patch.yaml
}

end() {
  bowline uninstall --confirm
  kubectl label namespace velero pod-security.kubernetes.io/enforce-
}
