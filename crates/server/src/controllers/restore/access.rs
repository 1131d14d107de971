//! Whether the server may restore at all. One that was installed to back up only may not, and each object
//! would be an error of its own, after volumes were made for nothing.

use bowline_api::RestoreSpec;
use bowline_api::access::Profile;
use k8s_openapi::api::authorization::v1::{
    ResourceAttributes, SelfSubjectAccessReview, SelfSubjectAccessReviewSpec,
};
use kube::api::PostParams;
use kube::{Api, Client};

use crate::story::one_line;

/// What is in most backups, as group and resource. Whoever may create any of it may restore something.
const KINDS: [(&str, &str); 7] = [
    ("*", "*"),
    ("", "namespaces"),
    ("", "configmaps"),
    ("", "secrets"),
    ("", "persistentvolumeclaims"),
    ("", "pods"),
    ("apps", "deployments"),
];
/// In how many namespaces that is asked, if the restore names any.
const NAMESPACES: usize = 8;

/// Why nothing can be restored, if the API server says so.
pub(super) async fn refusal(client: &Client, spec: &RestoreSpec) -> Option<String> {
    let reviews: Api<SelfSubjectAccessReview> = Api::all(client.clone());
    for question in questions(spec) {
        let spec = SelfSubjectAccessReviewSpec {
            resource_attributes: Some(question),
            ..SelfSubjectAccessReviewSpec::default()
        };
        let review = SelfSubjectAccessReview { spec, ..SelfSubjectAccessReview::default() };
        match reviews.create(&PostParams::default(), &review).await {
            Ok(answer) if answer.status.as_ref().is_some_and(|status| !status.allowed) => {}
            Ok(_) => return None,
            // Then each object will tell.
            Err(error) => {
                tracing::debug!("it is not known what may be restored: {}", one_line(&error));
                return None;
            }
        }
    }
    Some(format!(
        "the server may not create objects: it has the rights of the profile `{}`; to restore, install \
         it again with `bowline install --profile {}` and the flags that it was installed with",
        Profile::BackupOnly,
        Profile::Full
    ))
}

/// What to ask, in order: first for everywhere, then for the namespaces that are restored to.
fn questions(spec: &RestoreSpec) -> Vec<ResourceAttributes> {
    let mapped = |name: &String| spec.namespace_mapping.get(name).unwrap_or(name).clone();
    let named = spec.included_namespaces.iter().filter(|name| !name.contains('*')).map(mapped);
    let namespaces = std::iter::once(String::new()).chain(named.take(NAMESPACES));
    let ask = |namespace: String| {
        KINDS.map(|(group, resource)| ResourceAttributes {
            verb: Some("create".to_owned()),
            group: Some(group.to_owned()),
            resource: Some(resource.to_owned()),
            namespace: Some(namespace.clone()).filter(|namespace| !namespace.is_empty()),
            ..ResourceAttributes::default()
        })
    };
    namespaces.flat_map(ask).collect()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn it_is_asked_for_everything_first_and_then_for_where_objects_go() {
        let spec = json!({
            "backupName": "b",
            "includedNamespaces": ["shop", "team-*", "bank"],
            "namespaceMapping": {"shop": "shop-2"},
        });
        let questions = questions(&serde_json::from_value(spec).unwrap());
        assert_eq!(questions[0].resource.as_deref(), Some("*"));
        assert_eq!(questions[0].namespace, None);
        let mut namespaces: Vec<_> = questions.iter().map(|one| one.namespace.as_deref()).collect();
        namespaces.dedup();
        assert_eq!(namespaces, [None, Some("shop-2"), Some("bank")]);
        assert!(questions.iter().all(|one| one.verb.as_deref() == Some("create")));
    }

    #[test]
    fn however_many_namespaces_are_named_the_questions_are_few() {
        let names: Vec<String> = (0..500).map(|number| number.to_string()).collect();
        let spec = json!({"backupName": "b", "includedNamespaces": names});
        let questions = questions(&serde_json::from_value(spec).unwrap());
        assert_eq!(questions.len(), KINDS.len() * (NAMESPACES + 1));
    }
}
