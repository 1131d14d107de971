use super::*;

/// An action by which the ConfigMap `chain-N` adds `chain-N+1`; the last adds the first.
fn chained(count: usize) -> NamedAction<dyn RestoreItemAction> {
    action(&["configmaps"], move |object, output| {
        let name = object["metadata"]["name"].as_str().unwrap();
        let number: usize = name.strip_prefix("chain-").unwrap().parse().unwrap();
        let next = format!("chain-{}", (number + 1) % count);
        output.additional_items = vec![id("", "configmaps", "shop", &next)];
    })
}

fn chain(count: usize) -> Vec<Entry> {
    let map = |number| entry("configmaps", &map("shop", &format!("chain-{number}")));
    (0..count).map(map).collect()
}

#[tokio::test]
async fn a_chain_of_thousands_of_additional_items_is_restored() {
    const COUNT: usize = 3000;
    let mut fixture = RestoreFixture::new(&chain(COUNT));
    fixture.actions = vec![chained(COUNT)];
    // One item at a time, so that the first one adds all others.
    fixture.items = 1;
    let restored = fixture.run_well().await;
    assert_eq!((restored.items, restored.total), (COUNT, COUNT));
}

#[tokio::test]
async fn items_that_add_one_another_in_a_circle_are_restored() {
    for items in [1, 8] {
        let mut fixture = RestoreFixture::new(&chain(5));
        fixture.actions = vec![chained(5)];
        fixture.items = items;
        let restored = tokio::time::timeout(Duration::from_mins(1), fixture.run_well()).await;
        assert_eq!(restored.expect("it ends").items, 5);
    }
}

#[tokio::test]
async fn unavailable_additional_item_is_reported_with_action_and_parent() {
    let mut fixture = RestoreFixture::new(&maps("shop", &["a"]));
    fixture.actions = vec![action(&["configmaps"], |_, output| {
        output.additional_items =
            vec![id("", "secrets", "shop", ""), id("", "secrets", "shop", "gone")];
    })];
    let restored = fixture.run().await;
    let (errors, warnings) = messages(&restored);
    assert!(errors.is_empty(), "{errors:?}");
    assert_eq!(
        warnings,
        [
            "configmaps/a: the action example.io/act requested an item of secrets without a name",
            "configmaps/a: the action example.io/act requested secrets/shop/gone, which is not in the backup",
        ]
    );
}

fn secret(namespace: &str) -> Value {
    json!({
        "apiVersion": "v1", "kind": "Secret",
        "metadata": {"namespace": namespace, "name": "token"},
        "type": "bootstrap.kubernetes.io/token",
    })
}

/// A restore of one namespace, whose ConfigMap itself carries the annotation that its additional items must be
/// included, and a Secret that is added to it.
fn marked(namespace: &str) -> RestoreFixture {
    let mut map = map("shop", "a");
    map["metadata"]["annotations"] = json!({annotation::MUST_INCLUDE_ON_RESTORE: "true"});
    let mut fixture =
        RestoreFixture::new(&[entry("configmaps", &map), entry("secrets", &secret(namespace))]);
    fixture.spec = json!({"includedNamespaces": ["shop"]});
    fixture
}

#[tokio::test]
async fn must_include_annotation_in_the_archive_is_ignored() {
    let add = |_: &mut Value, output: &mut RestoreOutput| {
        output.additional_items = vec![id("", "secrets", "other", "token")];
    };
    let mut fixture = marked("other");
    fixture.actions = vec![action(&["configmaps"], add)];
    fixture.run_well().await;
    assert_eq!(fixture.object("secrets", "other", "token"), None);
    let restored = fixture.object("configmaps", "shop", "a").unwrap();
    assert_eq!(restored["metadata"]["annotations"], json!({}), "the mark is not restored");

    // An action may set the annotation.
    let mut fixture = marked("other");
    fixture.actions = vec![action(&["configmaps"], move |object, output| {
        assert!(object["metadata"]["annotations"][annotation::MUST_INCLUDE_ON_RESTORE].is_null());
        object["metadata"]["annotations"][annotation::MUST_INCLUDE_ON_RESTORE] = "true".into();
        add(object, output);
    })];
    fixture.run_well().await;
    assert!(fixture.object("secrets", "other", "token").is_some());

    // It does not apply to an action that runs later.
    let mut fixture = marked("other");
    let mark = |object: &mut Value, _: &mut RestoreOutput| {
        object["metadata"]["annotations"][annotation::MUST_INCLUDE_ON_RESTORE] = "true".into();
    };
    fixture.actions = vec![action(&["configmaps"], mark), action(&["configmaps"], add)];
    fixture.run_well().await;
    assert_eq!(fixture.object("secrets", "other", "token"), None);
}

#[tokio::test]
async fn actions_cannot_add_items_to_protected_namespaces() {
    for namespace in ["kube-system", "velero"] {
        let adding = |included: &[&str]| {
            let mut fixture = marked(namespace);
            fixture.spec = json!({"includedNamespaces": included});
            fixture.actions = vec![action(&["configmaps"], move |object, output| {
                object["metadata"]["annotations"] =
                    json!({annotation::MUST_INCLUDE_ON_RESTORE: "true"});
                output.additional_items = vec![id("", "secrets", namespace, "token")];
            })];
            fixture
        };
        let fixture = adding(&["shop"]);
        let (errors, warnings) = messages(&fixture.run().await);
        assert_eq!(fixture.object("secrets", namespace, "token"), None);
        assert!(errors.is_empty() && warnings.len() == 1, "{errors:?} {warnings:?}");
        assert!(warnings[0].contains("only included items"), "{warnings:?}");
        // A namespace that the user names explicitly is allowed.
        let fixture = adding(&["shop", namespace]);
        fixture.run_well().await;
        assert!(fixture.object("secrets", namespace, "token").is_some());
    }
}
