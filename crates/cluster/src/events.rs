//! Warning Events of the cluster.

use std::sync::Arc;

use futures::StreamExt as _;
use serde_json::Value;

use super::{Cluster, Query};
use crate::resource::Resource;

/// Last warning about an object: `ProvisioningFailed: …`. Only warnings after a given time count,
/// to the second and in the API server's format; all if it is empty.
pub async fn last_warning(
    cluster: &dyn Cluster,
    events: &Arc<Resource>,
    namespace: Option<&str>,
    uid: &str,
    since: &str,
) -> Option<String> {
    let query = Query {
        namespace: namespace.map(str::to_owned),
        field_selector: format!("involvedObject.uid={uid},type=Warning"),
        ..Query::default()
    };
    let mut warnings = cluster.list(events, query);
    let mut last: Option<(String, String)> = None;
    while let Some(Ok(event)) = warnings.next().await {
        let Ok(event) = event.item.parse::<Value>() else { continue };
        let text = |field: &str| event.get(field).and_then(Value::as_str).unwrap_or_default();
        // Times of the same format sort as text.
        let time = text("lastTimestamp").max(text("eventTime"));
        let is_later = last.as_ref().is_none_or(|(before, _)| before.as_str() <= time);
        if is_later && (since.is_empty() || time > since) {
            let warning = format!("{}: {}", text("reason"), text("message"));
            last = Some((time.to_owned(), warning));
        }
    }
    last.map(|(_, warning)| warning)
}
