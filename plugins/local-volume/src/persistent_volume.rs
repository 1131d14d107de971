//! Reads and changes the path of a PersistentVolume.

use bowline_plugin_sdk::serde_json::{Value, json};

/// The label that identifies nodes.
const HOSTNAME: &str = "kubernetes.io/hostname";

/// The two types of volumes that are folders on a node.
const VOLUME_SOURCES: [&str; 2] = ["local", "hostPath"];

/// Location of a volume.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum VolumeSource {
    /// A folder, with its path, which is untrusted.
    Path(String),
    /// A volume of another driver.
    OtherType,
    /// On another node.
    OtherNode,
    /// A device, which has no files to clone.
    Block,
}

/// The location in a PersistentVolume. Without the name of `node`, all nodes count as this one.
pub(crate) fn volume_source_of(object: &Value, node: Option<&str>) -> VolumeSource {
    let spec = &object["spec"];
    let Some(path) = VOLUME_SOURCES.iter().find_map(|kind| spec[*kind]["path"].as_str()) else {
        return VolumeSource::OtherType;
    };
    if node.is_some_and(|node| excludes_node(spec, node)) {
        return VolumeSource::OtherNode;
    }
    if spec["volumeMode"] == "Block" {
        return VolumeSource::Block;
    }
    VolumeSource::Path(path.to_owned())
}

/// True if the affinity of a volume excludes a node. Each term is an alternative; only its host
/// names are considered.
fn excludes_node(spec: &Value, node: &str) -> bool {
    let terms = &spec["nodeAffinity"]["required"]["nodeSelectorTerms"];
    let Some(terms) = terms.as_array().filter(|terms| !terms.is_empty()) else { return false };
    let forbids = |requirement: &Value| {
        let values = requirement["values"].as_array();
        let is_named = values.is_some_and(|values| values.iter().any(|value| value == node));
        requirement["key"] == HOSTNAME
            && match requirement["operator"].as_str() {
                Some("In") => !is_named,
                Some("NotIn") => is_named,
                Some("DoesNotExist") => true,
                _ => false,
            }
    };
    terms.iter().all(|term| {
        let requirements = term["matchExpressions"].as_array();
        requirements.is_some_and(|requirements| requirements.iter().any(forbids))
    })
}

/// Sets another path in a PersistentVolume of one of our types; `None` if it is of another type.
///
/// A `local` volume is bound to a node. If the name of this node is known, the new volume is bound
/// to it, since that is where it was created.
pub(crate) fn with_path(mut object: Value, path: &str, node: Option<&str>) -> Option<Value> {
    let kind = VOLUME_SOURCES.into_iter().find(|kind| object["spec"][*kind].is_object())?;
    object["spec"][kind]["path"] = path.into();
    if let Some(node) = node.filter(|_| kind == "local") {
        object["spec"]["nodeAffinity"] = json!({"required": {"nodeSelectorTerms": [
            {"matchExpressions": [{"key": HOSTNAME, "operator": "In", "values": [node]}]}
        ]}});
    }
    Some(object)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn local(path: &str, operator: &str, nodes: &[&str]) -> Value {
        json!({"spec": {"local": {"path": path}, "nodeAffinity": {"required": {"nodeSelectorTerms": [
            {"matchExpressions": [{"key": HOSTNAME, "operator": operator, "values": nodes}]}
        ]}}}})
    }

    #[test]
    fn folders_of_this_node_are_supported() {
        let supported = |path: &str| VolumeSource::Path(path.to_owned());
        let host_path = json!({"spec": {"hostPath": {"path": "/b", "type": ""}}});
        let csi = json!({"spec": {"csi": {"driver": "x", "volumeHandle": "local"}}});
        let two_ways = json!({"spec": {"local": {"path": "/a"}, "nodeAffinity": {"required": {
            "nodeSelectorTerms": [
                {"matchExpressions": [{"key": HOSTNAME, "operator": "In", "values": ["n2"]}]},
                {"matchExpressions": [{"key": "zone", "operator": "In", "values": ["z"]}]},
            ]
        }}}});
        let block = json!({"spec": {"local": {"path": "/dev/x"}, "volumeMode": "Block"}});
        for (object, node, expected) in [
            (local("/a", "In", &["n1"]), Some("n1"), supported("/a")),
            (local("/a", "In", &["n1"]), Some("n2"), VolumeSource::OtherNode),
            (local("/a", "In", &["n1"]), None, supported("/a")),
            (local("/a", "NotIn", &["n1"]), Some("n1"), VolumeSource::OtherNode),
            (local("/a", "NotIn", &["n1"]), Some("n2"), supported("/a")),
            (local("/a", "Exists", &[]), Some("n2"), supported("/a")),
            (local("/a", "DoesNotExist", &[]), Some("n2"), VolumeSource::OtherNode),
            (two_ways, Some("n1"), supported("/a")),
            (host_path, Some("n1"), supported("/b")),
            (block, None, VolumeSource::Block),
            (csi, None, VolumeSource::OtherType),
            (json!({"spec": {}}), None, VolumeSource::OtherType),
            (json!({}), None, VolumeSource::OtherType),
        ] {
            assert_eq!(volume_source_of(&object, node), expected, "{object}");
        }
    }

    #[test]
    fn path_is_replaced_in_place_and_nothing_else_changes() {
        let before = local("/a", "In", &["n1"]);
        let after = with_path(before.clone(), "/new", None).unwrap();
        assert_eq!(volume_source_of(&after, None), VolumeSource::Path("/new".to_owned()));
        assert_eq!(after["spec"]["nodeAffinity"], before["spec"]["nodeAffinity"]);

        let host_path = json!({"kind": "PersistentVolume", "spec": {
            "hostPath": {"path": "/b", "type": "Directory"}, "capacity": {"storage": "1Gi"}
        }});
        let mut expected = host_path.clone();
        expected["spec"]["hostPath"]["path"] = "/new".into();
        assert_eq!(with_path(host_path, "/new", Some("n1")), Some(expected));

        assert_eq!(with_path(json!({"spec": {"csi": {}}}), "/new", None), None);
    }

    #[test]
    fn local_volume_affinity_is_set_to_the_node_it_was_created_on() {
        let after = with_path(local("/a", "In", &["old"]), "/new", Some("n1")).unwrap();
        assert_eq!(volume_source_of(&after, Some("n1")), VolumeSource::Path("/new".to_owned()));
        assert_eq!(volume_source_of(&after, Some("old")), VolumeSource::OtherNode);
    }
}
