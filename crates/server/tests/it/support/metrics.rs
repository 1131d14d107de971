//! Metrics that a server exports to Prometheus.

use std::collections::BTreeMap;
use std::net::Ipv4Addr;

use bowline_server::metrics;
use bowline_testbed::port;
use tokio::net::TcpStream;

use crate::bed::eventually;
use crate::http;

/// A series: its name, and its labels with their values.
pub(crate) type Series = (String, BTreeMap<String, String>);
/// Metrics at one time.
pub(crate) type Served = BTreeMap<Series, f64>;

/// Reads the text format. Values of labels here have neither commas nor quotes in them.
fn parse(text: &str) -> Served {
    let series = |text: &str| -> Series {
        let (name, labels) = text.split_once('{').unwrap_or((text, ""));
        let pairs = labels.trim_end_matches('}').split(',').filter_map(|pair| pair.split_once('='));
        let pair = |(label, value): (&str, &str)| {
            let value = value.trim_matches('"');
            // Bounds are spelled in more than one way.
            let bound = (label == "le").then(|| value.parse::<f64>().unwrap().to_string());
            (label.to_owned(), bound.unwrap_or_else(|| value.to_owned()))
        };
        (name.to_owned(), pairs.map(pair).collect())
    };
    let lines = text.lines().filter(|line| !line.is_empty() && !line.starts_with('#'));
    lines
        .map(|line| line.rsplit_once(' ').unwrap())
        .map(|(key, value)| (series(key), value.parse().unwrap()))
        .collect()
}

/// Metrics at a port of this machine, once it is served.
pub(crate) async fn scrape(port: u16) -> Served {
    eventually("metrics are served", async || {
        TcpStream::connect((Ipv4Addr::LOCALHOST, port)).await.is_ok()
    })
    .await;
    let (status, text) = http::get(&format!("http://127.0.0.1:{port}/metrics")).await;
    assert_eq!(status, 200);
    parse(&String::from_utf8(text).unwrap())
}

/// Address of the metrics of a server from now on.
pub(crate) fn address() -> (u16, metrics::Address) {
    let [port] = port::free_ports().unwrap();
    (port, metrics::Address::At((Ipv4Addr::LOCALHOST, port).into()))
}
