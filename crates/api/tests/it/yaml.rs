//! The printed CRDs.

use bowline_api::{annotation, crds, label};
use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use kube::ResourceExt;

#[test]
fn printed_definitions_round_trip() {
    let all = crds::all();
    let yaml = crds::to_yaml(&all).unwrap();
    let read: Vec<CustomResourceDefinition> = serde_saphyr::from_multiple(&yaml).unwrap();
    assert_eq!(read, all);
}

#[test]
fn printed_yaml_uses_no_anchors_or_tags() {
    let yaml = crds::to_yaml(&crds::all()).unwrap();
    assert_eq!(yaml.matches("kind: CustomResourceDefinition\n").count(), 15);
    for line in yaml.lines() {
        let value = line.split_once(": ").map_or("", |(_, value)| value);
        assert!(!value.starts_with(['&', '*', '!', '|', '>']), "{line}");
    }
    // The only enum value that is the empty string, and a version that looks like a number.
    assert!(yaml.contains("- ''\n") || yaml.contains("- \"\"\n"));
}

#[test]
fn definitions_have_veleros_label_and_bowlines_version() {
    for crd in crds::all() {
        assert_eq!(crd.labels()[label::COMPONENT], "velero");
        assert_eq!(crd.annotations()[annotation::CRD_VERSION], env!("CARGO_PKG_VERSION"));
    }
}
