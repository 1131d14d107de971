//! Compares the documented metrics with the served ones.

use std::collections::{BTreeMap, BTreeSet};

use bowline_api::{Backup, BackupStorageLocation, Restore, Schedule};
use kube::Resource;
use kube::runtime::reflector::{self, Store};
use kube::runtime::watcher::Event;
use serde::de::DeserializeOwned;
use serde_json::{Value, json};

use super::*;

const PAGE: &str = include_str!("../../../../../docs/metrics.md");
const ALERTS: &str = include_str!("../../../../../deploy/monitoring/alerts.yaml");
const DASHBOARD: &str = include_str!("../../../../../deploy/monitoring/dashboard.json");

/// Store of a watch that has seen one object.
fn store<K>(object: Value) -> Store<K>
where
    K: Resource<DynamicType = ()> + Clone + DeserializeOwned + std::fmt::Debug + 'static,
{
    let (store, mut writer) = reflector::store();
    let mut object = object;
    object["apiVersion"] = json!(K::api_version(&()));
    object["kind"] = json!(K::kind(&()));
    writer.apply_watcher_event(&Event::InitApply(serde_json::from_value(object).unwrap()));
    writer.apply_watcher_event(&Event::InitDone);
    store
}

/// Metrics of a server with activity of every kind.
fn metrics_with_activity() -> Metrics {
    let metrics = Metrics::new();
    metrics.set_operations(
        "1",
        &[operation("a/b", "x", NOW, State::New), operation("a/b", "y", NOW, State::Completed)],
    );
    metrics.observe_plugin_call(&name("a/b"), Method::Execute, CallOutcome::Ok, Duration::ZERO);
    let status = json!({
        "phase": "Completed", "startTimestamp": "2026-11-15T12:00:00Z",
        "completionTimestamp": "2026-11-15T12:00:01Z", "csiVolumeSnapshotsAttempted": 1,
    });
    let backup = json!({"metadata": {"name": "b"}, "spec": {}, "status": status});
    let backups = store::<Backup>(backup);
    let first = backups.state().remove(0);
    metrics.archive_written(&first, 1);
    metrics.backup_ended(&first, first.status.as_ref().unwrap(), TerminalPhase::Completed);
    metrics.add_source(ObjectSource::Backups(backups));
    let restore = json!({"metadata": {"name": "r"}, "spec": {"backupName": "b"}});
    metrics.add_source(ObjectSource::Restores(store::<Restore>(restore)));
    let spec = json!({"schedule": "@every 1h", "template": {}});
    let metadata = json!({"name": "s", "creationTimestamp": "2026-11-15T12:00:00Z"});
    let schedule = json!({"metadata": metadata, "spec": spec});
    metrics.add_source(ObjectSource::Schedules(store::<Schedule>(schedule)));
    let spec = json!({"provider": "p", "objectStorage": {"bucket": "b"}});
    let condition = json!({"type": "Synced", "status": "True", "reason": "Synced", "message": "",
                           "lastTransitionTime": "2026-11-15T12:00:00Z"});
    let status = json!({"phase": "Available", "conditions": [condition]});
    let location = json!({"metadata": {"name": "l"}, "spec": spec, "status": status});
    metrics.add_source(ObjectSource::Locations(store::<BackupStorageLocation>(location)));
    metrics
}

/// Name and labels of a series.
fn parts(series: &str) -> (&str, BTreeSet<String>) {
    let Some((name, rest)) = series.split_once('{') else { return (series, BTreeSet::new()) };
    let labels = rest.trim_end_matches('}').split(',');
    let name_of =
        |label: &str| label.split(['=', '!']).next().unwrap_or_default().trim().to_owned();
    (name, labels.map(name_of).filter(|label| !label.is_empty()).collect())
}

/// Names of all served series, with their labels.
fn served(text: &str) -> BTreeMap<&str, BTreeSet<String>> {
    let lines = text.lines().filter(|line| !line.starts_with('#'));
    lines.map(|line| parts(line.rsplit_once(' ').unwrap().0)).collect()
}

/// Metrics with their types and labels.
type Metric = (String, String, BTreeSet<String>);

#[test]
fn metrics_page_lists_exactly_the_served_metrics() {
    let text = metrics_with_activity().render(second(NOW)).unwrap();
    let series = served(&text);
    let types = text.lines().filter_map(|line| line.strip_prefix("# TYPE ")?.split_once(' '));
    let metric = |(name, kind): (&str, &str)| -> Metric {
        let suffix = if kind == "counter" { "_total" } else { "" };
        let sample = if kind == "histogram" { "_count" } else { suffix };
        let labels = series[&*format!("{name}{sample}")].clone();
        (format!("{name}{suffix}"), kind.to_owned(), labels)
    };
    let served: BTreeSet<Metric> = types.map(metric).collect();
    let row = |line: &str| -> Option<Metric> {
        let (series, rest) = line.strip_prefix("| `")?.split_once('`')?;
        let is_metric = ["velero_", "bowline_"].iter().any(|prefix| series.starts_with(prefix));
        let (name, labels) = parts(series);
        let kind = rest.strip_prefix(" | ")?.split(' ').next()?;
        is_metric.then(|| (name.to_owned(), kind.to_owned(), labels))
    };
    let documented: BTreeSet<Metric> = PAGE.lines().filter_map(row).collect();
    assert_eq!(served, documented);
    assert_eq!(PAGE.lines().filter_map(row).count(), documented.len(), "each is there once");
}

/// Metrics that a text names, with the labels that it selects by.
fn named(text: &str) -> Vec<(&str, BTreeSet<String>)> {
    let is_part = |c: char| c.is_ascii_alphanumeric() || c == '_';
    let mut found = Vec::new();
    for prefix in ["velero_", "bowline_"] {
        for (start, _) in text.match_indices(prefix) {
            if text[..start].ends_with(is_part) {
                continue;
            }
            let rest = &text[start..];
            let end = rest.find(|c| !is_part(c)).unwrap_or(rest.len());
            let selector = rest[end..].strip_prefix('{').and_then(|rest| rest.split_once('}'));
            let labels = selector.map(|(labels, _)| parts(&format!("{{{labels}}}")).1);
            found.push((&rest[..end], labels.unwrap_or_default()));
        }
    }
    found
}

/// Texts of a key, at any depth.
fn texts_of<'a>(value: &'a Value, key: &str) -> Vec<&'a str> {
    match value {
        Value::Object(fields) => {
            let own = fields.get(key).and_then(Value::as_str);
            own.into_iter().chain(fields.values().flat_map(|one| texts_of(one, key))).collect()
        }
        Value::Array(values) => values.iter().flat_map(|one| texts_of(one, key)).collect(),
        _ => Vec::new(),
    }
}

#[test]
fn alerts_dashboard_and_page_use_only_served_metrics() {
    let alerts: Value = serde_saphyr::from_str(ALERTS).unwrap();
    let dashboard: Value = serde_json::from_str(DASHBOARD).unwrap();
    let text = metrics_with_activity().render(second(NOW)).unwrap();
    let series = served(&text);
    let mut asked = texts_of(&alerts, "expr");
    assert!(asked.len() >= 10, "{asked:?}");
    asked.extend(texts_of(&dashboard, "expr"));
    for expression in &asked {
        let count = |c: char| expression.matches(c).count();
        assert_eq!((count('('), count('{')), (count(')'), count('}')), "{expression}");
        let names = named(expression);
        assert!(!names.is_empty() || expression.contains("up{"), "{expression}");
        for (name, labels) in names {
            let known = series.get(name).unwrap_or_else(|| panic!("no {name}: {expression}"));
            assert!(labels.is_subset(known), "{labels:?} of {name}: {expression}");
        }
    }
    let is_prefix = |name: &str| ["velero_", "bowline_"].contains(&name);
    let is_documented = |name: &str| {
        let histogram = format!("{name}_count");
        series.contains_key(name) || series.contains_key(&*histogram) || is_prefix(name)
    };
    for (name, _) in named(PAGE) {
        assert!(is_documented(name), "{name} is on the page");
    }
    // Panels must not overlap.
    let panels = dashboard["panels"].as_array().unwrap();
    let places: BTreeSet<String> = panels.iter().map(|one| one["gridPos"].to_string()).collect();
    let ids: BTreeSet<String> = panels.iter().map(|one| one["id"].to_string()).collect();
    assert_eq!((places.len(), ids.len()), (panels.len(), panels.len()));
}

#[test]
fn alerts_do_not_aggregate_over_clusters_or_namespaces() {
    let alerts: Value = serde_saphyr::from_str(ALERTS).unwrap();
    for expression in texts_of(&alerts, "expr") {
        assert!(!expression.contains(" by ("), "{expression}");
    }
}

#[test]
fn alerts_use_increase_only_on_initialized_counters() {
    let alerts: Value = serde_saphyr::from_str(ALERTS).unwrap();
    let dashboard: Value = serde_json::from_str(DASHBOARD).unwrap();
    let asked = [texts_of(&alerts, "expr"), texts_of(&dashboard, "expr")].concat();
    let idle = Metrics::new().render(second(NOW)).unwrap();
    let series = served(&idle);
    let mut counted = 0;
    for expression in asked {
        for rest in expression.split("increase(").skip(1) {
            let name = rest.split(['{', '[']).next().unwrap();
            // Operations have a plugin label, and no plugin is known from the start.
            if name != ENDED {
                assert!(series.contains_key(name), "{name} is not there from zero on");
                assert!(!series[name].contains("backupName"), "{name}");
                counted += 1;
            }
        }
    }
    assert!(counted >= 6, "{counted}");
}
