use std::time::Duration;

use serde_json::json;

use super::*;

fn config_map(namespace: &str, name: &str, app: &str) -> Value {
    json!({
        "apiVersion": "v1", "kind": "ConfigMap",
        "metadata": {"namespace": namespace, "name": name, "labels": {"app": app}},
    })
}

async fn names(fake: &Fake, plural: &str, query: Query) -> Vec<Result<String>> {
    let resource = fake.resources().core(plural).unwrap().clone();
    let listed: Vec<_> = fake.list(&resource, query).collect().await;
    let name = |object: Object| format!("{}/{}", object.namespace, object.name);
    listed.into_iter().map(|object| object.map(name)).collect()
}

fn good(found: Vec<Result<String>>) -> Vec<String> {
    found.into_iter().map(Result::unwrap).collect()
}

fn three() -> Fake {
    Fake::usual()
        .with(config_map("b", "one", "shop"))
        .with(config_map("a", "two", "shop"))
        .with(config_map("a", "one", "blog"))
}

#[tokio::test]
async fn lists_are_in_order_and_honour_namespace_and_labels() {
    let fake = three();
    let query = |namespace: &str, selector: &str| Query {
        namespace: Some(namespace.to_owned()).filter(|namespace| !namespace.is_empty()),
        label_selector: selector.to_owned(),
        ..Query::default()
    };
    for (namespace, selector, found) in [
        ("", "", vec!["a/one", "a/two", "b/one"]),
        ("a", "", vec!["a/one", "a/two"]),
        ("", "app=shop", vec!["a/two", "b/one"]),
        ("b", "app=blog", vec![]),
    ] {
        assert_eq!(good(names(&fake, "configmaps", query(namespace, selector)).await), found);
    }
    assert!(names(&fake, "secrets", Query::default()).await.is_empty());
    assert_eq!(fake.lists().len(), 5);
    assert_eq!(fake.lists()[1], ("configmaps".to_owned(), query("a", "")));
}

#[tokio::test]
async fn list_fails_at_the_configured_position() {
    let fake = three();
    fake.fail_list("configmaps", 1, || Error::Timeout(Duration::from_secs(1)));
    let found = names(&fake, "configmaps", Query::default()).await;
    assert!(matches!(found[..], [Ok(_), Err(Error::Timeout(_))]), "{found:?}");

    fake.fail_list("configmaps", 0, || Error::Unreachable("gone".into()));
    let found = names(&fake, "configmaps", Query::default()).await;
    assert!(matches!(found[..], [Err(Error::Unreachable(_))]), "{found:?}");

    fake.fail_list("configmaps", 1, || Error::Object(InvalidObject::NoName));
    let found = names(&fake, "configmaps", Query::default()).await;
    assert!(matches!(found[..], [Ok(_), Err(Error::Object(_)), Ok(_), Ok(_)]), "{found:?}");
}

#[tokio::test]
async fn an_object_is_there_until_it_is_removed_or_its_reading_fails() {
    let fake = three();
    let resource = fake.resources().core("configmaps").unwrap().clone();
    let found = fake.get(&resource, "a", "one").await.unwrap().unwrap();
    assert_eq!(found.labels["app"], "blog");
    assert!(fake.get(&resource, "b", "two").await.unwrap().is_none());
    fake.remove("configmaps", "a", "one");
    assert!(fake.get(&resource, "a", "one").await.unwrap().is_none());
    fake.fail_get("configmaps", "a", "two", || Error::Unreachable("gone".into()));
    assert!(fake.get(&resource, "a", "two").await.is_err());
    assert_eq!(fake.gets().len(), 4);
    assert_eq!(fake.gets()[1].to_string(), "configmaps/b/two");
}

#[tokio::test]
async fn commands_are_remembered_and_answered_by_the_script() {
    let exec = |pod: &str| Exec {
        namespace: "a".into(),
        pod: pod.into(),
        container: "c".into(),
        command: vec!["sync".into()],
        timeout: Duration::from_secs(1),
    };
    let pod = json!({
        "apiVersion": "v1", "kind": "Pod", "metadata": {"namespace": "a", "name": "db"},
    });
    let fake = Fake::usual().with(pod.clone());
    assert!(fake.exec(&exec("db")).await.unwrap().failure.is_none());
    assert!(fake.exec(&exec("gone")).await.unwrap_err().is_not_found());
    assert_eq!(fake.execs(), [exec("db"), exec("gone")]);

    let fake =
        Fake::usual().with(pod).with_exec_script(|exec| Err(Error::ExecTimeout(exec.timeout)));
    assert!(matches!(fake.exec(&exec("db")).await, Err(Error::ExecTimeout(_))));
}
