//! The bucket in memory.

use std::sync::Arc;

use bowline_store::Guarantee;
use bowline_store::backend::Memory;

use crate::conformance::{Subject, conforms};

#[tokio::test]
async fn memory_conforms() {
    let backend = Arc::new(Memory::with_bucket("bucket"));
    conforms(&Subject { backend, bucket: "bucket", guarantee: Guarantee::Atomic }).await;
}
