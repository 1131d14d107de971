//! Number of requests that the API server has answered, from its own metrics.

use anyhow::Context as _;
use kube::Client;

/// Requests that the API server has answered since its start. Watches do not count: a watch is answered when it ends,
/// whichever client started it and whenever.
pub(crate) async fn answered_requests(client: &Client) -> anyhow::Result<u64> {
    let request = http::Request::get("/metrics").body(Vec::new())?;
    let page =
        client.request_text(request).await.context("cannot read the API server's metrics")?;
    Ok(count(&page))
}

/// Sum of `apiserver_request_total` without watches.
fn count(page: &str) -> u64 {
    let of_line = |line: &str| {
        let (labels, value) = line.strip_prefix("apiserver_request_total{")?.rsplit_once("} ")?;
        let is_watch = labels.split(',').any(|label| label == "verb=\"WATCH\"");
        let value: f64 = value.trim().parse().ok().filter(|_| !is_watch)?;
        #[expect(
            clippy::cast_possible_truncation,
            clippy::cast_sign_loss,
            reason = "a count, far below 2^52"
        )]
        let value = value as u64;
        Some(value)
    };
    page.lines().filter_map(of_line).sum()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn request_count_excludes_watches() {
        let page = "\
# HELP apiserver_request_total Counter of apiserver requests
# TYPE apiserver_request_total counter
apiserver_request_total{code=\"200\",component=\"apiserver\",verb=\"LIST\",version=\"v1\"} 12
apiserver_request_total{code=\"201\",component=\"apiserver\",verb=\"POST\",version=\"v1\"} 3e+02
apiserver_request_total{code=\"200\",component=\"apiserver\",verb=\"WATCH\",version=\"v1\"} 99
apiserver_request_terminations_total{code=\"429\"} 7
";
        assert_eq!(count(page), 312);
        assert_eq!(count(""), 0);
    }
}
