# Blocks: the image, the server, GitOps, remove.

begin() {
  cp "$S3_CREDENTIALS" credentials
  mkdir "$BUCKETS/backups"
  ln -s "$ROOT/deploy" deploy
  play_node
}
