# Blocks: where backups go, make one, look at them.

begin() {
  cp "$S3_CREDENTIALS" credentials
  mkdir "$BUCKETS/my-backups"
  shop
  serve
}
