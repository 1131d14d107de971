use super::*;

fn namespace(name: &str, more: &Value) -> Value {
    let mut namespace = json!({"apiVersion": "v1", "kind": "Namespace", "metadata": more});
    namespace["metadata"]["name"] = name.into();
    namespace
}

#[tokio::test]
async fn a_namespace_comes_back_without_its_finalizers() {
    let mut stored = namespace(
        "shop",
        &json!({"labels": {"a": "b"}, "annotations": {"c": "d"}, "finalizers": ["acme.io/protect"]}),
    );
    stored["spec"] = json!({"finalizers": ["kubernetes", "acme.io/other"]});
    let entries = [entry("namespaces", &stored), entry("configmaps", &map("shop", "a"))];
    let fixture = RestoreFixture::new(&entries);
    fixture.run_well().await;
    let restored = fixture.object("namespaces", "", "shop").unwrap();
    let metadata = &restored["metadata"];
    assert_eq!(
        (&metadata["labels"], &metadata["annotations"]),
        (&json!({"a": "b"}), &json!({"c": "d"}))
    );
    assert_eq!((&metadata["finalizers"], &restored["spec"]), (&Value::Null, &Value::Null));
}

#[tokio::test]
async fn two_namespaces_that_are_mapped_into_one_are_compared() {
    let labelled = |name: &str, team: &str| {
        entry("namespaces", &namespace(name, &json!({"labels": {"team": team}})))
    };
    for (teams, mapping, made_from) in [
        (["red", "blue"], json!({"a": "x", "b": "x"}), "red"),
        (["red", "blue"], json!({"a": "b"}), "blue"),
        (["red", "red"], json!({"a": "x", "b": "x"}), "red"),
    ] {
        let [a, b] = teams;
        let mut entries = vec![labelled("a", a), labelled("b", b)];
        entries.extend(maps("a", &["one"]).into_iter().chain(maps("b", &["two"])));
        let mut fixture = RestoreFixture::new(&entries);
        fixture.spec = json!({ "namespaceMapping": mapping });
        let restored = fixture.run().await;
        let (errors, warnings) = messages(&restored);
        assert!(errors.is_empty(), "{errors:?}");
        let target = mapping["a"].as_str().unwrap();
        let existing = fixture.object("namespaces", "", target).unwrap();
        assert_eq!(existing["metadata"]["labels"]["team"], made_from, "{mapping}");
        assert_eq!(warnings.len(), usize::from(a != b), "{mapping}: {warnings:?}");
        assert!(warnings.iter().all(|text| text.contains("labels.team")), "{warnings:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn wait_for_a_terminating_namespace_is_reported() {
    let terminating = namespace(
        "shop",
        &json!({"deletionTimestamp": "2026-01-01T00:00:00Z", "finalizers": ["acme.io/protect"]}),
    );
    let fixture = RestoreFixture::of(Fake::usual().with(terminating), &maps("shop", &["a"]));
    let (cluster, progress) = (Arc::clone(&fixture.cluster), Arc::clone(&fixture.progress));
    let observed = async {
        let waiting = progress.changed_terminating_namespaces(&BTreeSet::new()).await;
        cluster.remove("namespaces", "", "shop");
        let after = progress.changed_terminating_namespaces(&waiting).await;
        (waiting, after)
    };
    let (restored, (waiting, after)) = tokio::join!(fixture.run(), observed);
    assert_eq!((waiting, after), (["shop".to_owned()].into(), BTreeSet::new()));
    let (errors, warnings) = messages(&restored);
    assert!(errors.is_empty() && fixture.object("configmaps", "shop", "a").is_some(), "{errors:?}");
    assert!(warnings.len() == 1 && warnings[0].contains("was being deleted"), "{warnings:?}");
}
