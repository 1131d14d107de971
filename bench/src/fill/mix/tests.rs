use std::collections::{BTreeMap, BTreeSet};

use super::*;

fn all(load: Load) -> Vec<Object> {
    load.namespaces().chain(load.contents()).collect()
}

fn kind(object: &Object) -> &str {
    object.body["kind"].as_str().unwrap()
}

#[test]
fn mix_has_the_requested_number_of_objects() {
    for objects in [1, 2, 199, 200, 201, 500, 1234] {
        let objects_made = all(Load::Mix { objects, seed: 1 });
        assert_eq!(objects_made.len(), objects);
        assert_eq!(Load::Mix { objects, seed: 1 }.len(), objects);
        let namespaces = objects_made.iter().filter(|object| kind(object) == "Namespace").count();
        assert_eq!(namespaces, objects.div_ceil(PER_NAMESPACE), "of {objects}");
    }
}

#[test]
fn larger_load_continues_a_smaller_one() {
    let load = |objects| Load::Mix { objects, seed: 7 };
    for (smaller, larger) in [(0, 450), (1, 450), (200, 201), (150, 900), (450, 450)] {
        let (whole, rest) = (load(larger), load(larger));
        let rest = rest.namespaces_after(smaller).chain(rest.contents_after(smaller));
        let key =
            |object: &Object| format!("{} {}", object.collection, object.body["metadata"]["name"]);
        let joined: BTreeSet<String> =
            all(load(smaller)).iter().map(key).chain(rest.map(|object| key(&object))).collect();
        let expected: BTreeSet<String> = all(whole).iter().map(key).collect();
        assert_eq!(joined, expected, "{smaller} of {larger}");
        assert_eq!(joined.len(), larger);
    }
}

#[test]
fn full_namespace_holds_the_share_of_each_kind() {
    assert_eq!(SHARES.iter().map(|(_, share)| share).sum::<usize>(), PER_NAMESPACE - 1);
    let mut counts = BTreeMap::<String, usize>::new();
    for object in (Load::Mix { objects: PER_NAMESPACE, seed: 1 }).contents() {
        *counts.entry(kind(&object).to_owned()).or_default() += 1;
    }
    let wanted = SHARES.iter().map(|(kind, share)| (format!("{kind:?}"), *share)).collect();
    assert_eq!(counts, wanted);
}

#[test]
fn objects_depend_only_on_the_seed() {
    let first = all(Load::Mix { objects: 450, seed: 7 });
    assert_eq!(first, all(Load::Mix { objects: 450, seed: 7 }));
    let other = all(Load::Mix { objects: 450, seed: 8 });
    let same = first.iter().zip(&other).filter(|(one, two)| one == two).count();
    assert_eq!(same, 3, "the namespaces, which nothing random is in");
}

#[test]
fn larger_load_extends_the_smaller_one() {
    let small: Vec<Object> = Load::Mix { objects: 300, seed: 1 }.contents().collect();
    let large: Vec<Object> = Load::Mix { objects: 900, seed: 1 }.contents().collect();
    assert_eq!(small, large[..small.len()]);
}

#[test]
fn names_are_unique_within_their_collection() {
    let objects = all(Load::Mix { objects: 2000, seed: 1 });
    let names: BTreeSet<(&str, &str)> = objects
        .iter()
        .map(|object| {
            (object.collection.as_str(), object.body["metadata"]["name"].as_str().unwrap())
        })
        .collect();
    assert_eq!(names.len(), objects.len());
}

#[test]
fn object_sizes_are_realistic() {
    let sizes: Vec<usize> = (Load::Mix { objects: 4000, seed: 1 })
        .contents()
        .map(|object| object.body.to_string().len())
        .collect();
    let (smallest, largest) = (sizes.iter().min().unwrap(), sizes.iter().max().unwrap());
    assert!((300..1000).contains(smallest), "{smallest}");
    assert!((10_000..=20 * 1024).contains(largest), "{largest}");
    let mean = sizes.iter().sum::<usize>() / sizes.len();
    assert!((1000..5000).contains(&mean), "{mean}");
}

#[test]
fn big_secrets_have_the_stated_size() {
    let load = Load::BigSecrets { seed: 1 };
    assert_eq!(load.len(), 501);
    assert_eq!(load.namespaces().count(), 1);
    let secret = load.contents().next().unwrap();
    let blob = secret.body["data"]["blob"].as_str().unwrap();
    assert_eq!(blob.len() / 4 * 3, BIG_SECRET_BYTES);
    assert_eq!(load.contents().size_hint(), (500, Some(500)));
}
