use std::collections::BTreeMap;

use bowline_store::file::ResourceList;

use super::*;
use crate::cluster::fake::Fake;
use crate::resource::Resources;

struct Filler {
    resources: Resources,
    inventory: Inventory,
}

impl Filler {
    fn new() -> Self {
        Self { resources: Fake::usual().resources(), inventory: Inventory::default() }
    }

    fn add(&self, resource: &str, namespace: &str, name: &str) {
        let resource = self.resources.core(resource).unwrap();
        let metadata = serde_json::json!({"namespace": namespace, "name": name});
        let json = serde_json::json!({
            "apiVersion": resource.api_version(), "kind": resource.kind, "metadata": metadata
        });
        self.inventory.add(&Object::from_json(resource, json.to_string().into()).unwrap());
    }

    fn written(&self) -> String {
        serde_json::to_string(&self.inventory).unwrap()
    }
}

#[test]
fn the_file_lists_whole_names_in_order() {
    let filler = Filler::new();
    filler.add("pods", "a", "y");
    filler.add("pods", "a-b", "z");
    filler.add("pods", "a", "x");
    filler.add("namespaces", "", "a");
    let expected = r#"{"v1/Namespace":["a"],"v1/Pod":["a-b/z","a/x","a/y"]}"#;
    assert_eq!(filler.written(), expected);
    assert!(serde_json::from_str::<ResourceList>(expected).is_ok());
    assert_eq!(filler.inventory.count(), 4);
    let resources = filler.inventory.resources();
    assert_eq!(resources, ["namespaces", "pods"].map(|name| GroupResource::new("", name)));
    // Items may follow, and the file is written again.
    filler.add("pods", "a", "w");
    assert!(filler.written().contains(r#"["a-b/z","a/w","a/x","a/y"]"#), "{}", filler.written());
    assert_eq!(serde_json::to_string(&Inventory::default()).unwrap(), "{}");
}

/// Enough names for several batches, in an order that is not that of the file.
#[test]
fn names_are_sorted_a_batch_at_a_time() {
    let filler = Filler::new();
    let mut expected: BTreeMap<String, Vec<String>> = BTreeMap::new();
    for number in (0..3000_usize).map(|number| number * 1009 % 3000) {
        let (resource, kind) = [("pods", "v1/Pod"), ("secrets", "v1/Secret")][number % 2];
        let (namespace, name) = (format!("n{}", number % 37), format!("item-{number:04}"));
        filler.add(resource, &namespace, &name);
        expected.entry(kind.to_owned()).or_default().push(format!("{namespace}/{name}"));
    }
    for names in expected.values_mut() {
        names.sort_unstable();
    }
    assert_eq!(filler.written(), serde_json::to_string(&expected).unwrap());

    let names = filler.inventory.0.lock();
    let order = names.order();
    let Names { records, groups, .. } = &*names;
    let reader = NameReader { records, groups, order: &order, batch_bytes: 1000 };
    let (mut rank, mut batches, mut read) = (0, 0, Vec::new());
    while rank < order.len() {
        let batch = reader.read_batch(rank).unwrap();
        assert!(batch.bytes() <= 1000, "{}", batch.bytes());
        while batch.contains(rank) {
            read.extend(batch.names(rank).map(str::to_owned));
            rank += 1;
        }
        batches += 1;
    }
    assert!(batches > 20, "{batches}");
    assert_eq!(read.len(), 3000);
}

#[test]
fn names_take_a_fraction_of_their_size_in_memory() {
    let filler = Filler::new();
    let name = |number: usize| format!("deployment-{number}-7c9d8b6f5d-x2k4q");
    for number in 0..50_000 {
        filler.add("pods", "a", &name(number));
    }
    let names = filler.inventory.0.lock();
    assert_eq!((names.kinds.len(), names.namespaces.len(), names.groups.len()), (1, 1, 1));
    let expected: usize = (0..50_000).map(|number| name(number).len()).sum();
    assert_eq!(names.groups[0].bytes, expected as u64);
    let memory = names.records.memory();
    assert!(memory < expected / 3, "{memory} of {expected}");
}
