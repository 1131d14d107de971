//! The in-memory bucket.

use std::sync::Arc;

use bowline_store::Guarantee;
use bowline_store::backend::Memory;

use crate::conformance::{Subject, assert_conforms};

#[tokio::test]
async fn memory_backend_conforms() {
    let backend = Arc::new(Memory::with_bucket("bucket"));
    assert_conforms(&Subject { backend, bucket: "bucket", guarantee: Guarantee::Atomic }).await;
}
