//! Availability zone of a volume.

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::PersistentVolume;

/// Zone labels of a volume, the newer first.
const ZONE_LABELS: [&str; 2] =
    ["topology.kubernetes.io/zone", "failure-domain.beta.kubernetes.io/zone"];

/// Topology keys that drivers use for the zone in a volume's node affinity.
const DRIVER_ZONE_KEYS: [&str; 4] = [
    "topology.ebs.csi.aws.com/zone",
    "topology.disk.csi.azure.com/zone",
    "topology.cinder.csi.openstack.org/zone",
    "topology.manila.csi.openstack.org/zone",
];

/// The key of the driver whose volumes span several zones.
const GKE_ZONE_KEY: &str = "topology.gke.io/zone";
const ZONE_SEPARATOR: &str = "__";

/// The zone of a volume: from its labels, else from its node affinity. Empty if neither has one.
pub(super) fn zone_of(volume: &PersistentVolume) -> String {
    let labels = volume.metadata.labels.as_ref();
    let labelled = ZONE_LABELS.iter().find_map(|key| labels.and_then(|labels| labels.get(*key)));
    labelled.cloned().unwrap_or_else(|| zone_of_nodes(volume))
}

fn zone_of_nodes(volume: &PersistentVolume) -> String {
    let affinity = volume.spec.as_ref().and_then(|spec| spec.node_affinity.as_ref());
    let terms = affinity.and_then(|affinity| affinity.required.as_ref());
    let terms = terms.map(|required| required.node_selector_terms.as_slice()).unwrap_or_default();
    let mut regional = Vec::new();
    for rule in terms.iter().flat_map(|term| term.match_expressions.iter().flatten()) {
        let first = rule.values.as_ref().and_then(|values| values.first());
        let Some(zone) = first.filter(|_| rule.operator == "In") else { continue };
        let key = rule.key.as_str();
        if key == GKE_ZONE_KEY {
            regional.push(zone.as_str());
        } else if DRIVER_ZONE_KEYS.contains(&key) || ZONE_LABELS.contains(&key) {
            return zone.clone();
        }
    }
    regional.join(ZONE_SEPARATOR)
}

/// The tags of a snapshot: the labels of the backup, and the names of backup and volume.
pub(super) fn tags(
    labels: Option<&BTreeMap<String, String>>,
    backup: &str,
    volume: &str,
    request: &str,
) -> BTreeMap<String, String> {
    let mut tags = labels.cloned().unwrap_or_default();
    for (key, value) in [
        ("velero.io/backup", backup),
        ("velero.io/pv", volume),
        (bowline_api::annotation::REQUEST_ID, request),
    ] {
        tags.insert(key.to_owned(), value.to_owned());
    }
    tags
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn zone(labels: &Value, rules: &Value) -> String {
        let nodes = json!({"required": {"nodeSelectorTerms": [{"matchExpressions": rules}]}});
        let volume = json!({"metadata": {"labels": labels}, "spec": {"nodeAffinity": nodes}});
        zone_of(&serde_json::from_value(volume).unwrap())
    }

    #[test]
    fn labels_come_first_and_then_what_the_nodes_have_in_common() {
        let rule = |key: &str, operator: &str, values: &[&str]| json!({"key": key, "operator": operator, "values": values});
        let new = "topology.kubernetes.io/zone";
        let old = "failure-domain.beta.kubernetes.io/zone";
        let ebs = "topology.ebs.csi.aws.com/zone";
        for (labels, rules, expected) in [
            (json!({new: "a", old: "b"}), json!([]), "a"),
            (json!({old: "b"}), json!([rule(ebs, "In", &["c"])]), "b"),
            (json!({}), json!([rule(ebs, "In", &["c", "d"])]), "c"),
            (json!({}), json!([rule(ebs, "NotIn", &["c"]), rule(new, "In", &["e"])]), "e"),
            (
                json!({}),
                json!([rule(GKE_ZONE_KEY, "In", &["f"]), rule(GKE_ZONE_KEY, "In", &["g"])]),
                "f__g",
            ),
            (json!({}), json!([rule(GKE_ZONE_KEY, "In", &["f"]), rule(ebs, "In", &["c"])]), "c"),
            (json!({}), json!([rule("kubernetes.io/hostname", "In", &["n1"])]), ""),
            (json!({}), json!([rule(ebs, "In", &[])]), ""),
        ] {
            assert_eq!(zone(&labels, &rules), expected, "{labels} {rules}");
        }
        assert_eq!(zone_of(&PersistentVolume::default()), "");
    }
}
