//! The printed CRDs.

use bowline_api::{annotation, crds, label};
use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use kube::ResourceExt;

#[test]
fn the_printed_definitions_read_back_as_they_were() {
    let all = crds::all();
    let yaml = crds::to_yaml(&all).unwrap();
    let read: Vec<CustomResourceDefinition> = serde_saphyr::from_multiple(&yaml).unwrap();
    assert_eq!(read, all);
}

#[test]
fn the_print_uses_plain_yaml_only() {
    let yaml = crds::to_yaml(&crds::all()).unwrap();
    assert_eq!(yaml.matches("kind: CustomResourceDefinition\n").count(), 15);
    for line in yaml.lines() {
        let value = line.split_once(": ").map_or("", |(_, value)| value);
        assert!(!value.starts_with(['&', '*', '!', '|', '>']), "{line}");
    }
    // The one enum value that is the empty text, and a version that looks like a number.
    assert!(yaml.contains("- ''\n") || yaml.contains("- \"\"\n"));
}

#[test]
fn definitions_are_labelled_like_veleros_and_carry_our_version() {
    for crd in crds::all() {
        assert_eq!(crd.labels()[label::COMPONENT], "velero");
        assert_eq!(crd.annotations()[annotation::CRD_VERSION], env!("CARGO_PKG_VERSION"));
    }
}
