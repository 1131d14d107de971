//! Whether the server may restore at all. One that was installed to back up only may not, and each object
//! would be an error of its own, after volumes were made for nothing.
//!
//! Only what is sure is refused: a restore of which no object could be created anywhere. Where the API
//! server does not say all, or does not answer in time, the restore goes on and each object tells.

use std::time::Duration;

use bowline_api::access::{Profile, cluster_rules};
use bowline_api::{BackupSpec, RestoreSpec};
use futures::{StreamExt as _, stream};
use k8s_openapi::api::authorization::v1::{
    ResourceAttributes, ResourceRule, SelfSubjectAccessReview, SelfSubjectAccessReviewSpec,
    SelfSubjectRulesReview, SelfSubjectRulesReviewSpec, SubjectRulesReviewStatus,
};
use k8s_openapi::api::core::v1::Namespace;
use kube::api::{ListParams, PostParams};
use kube::{Api, Client};

use crate::error_text::status_message;

/// How long all questions may take together.
const REVIEW_TIMEOUT: Duration = Duration::from_secs(10);
/// In how many namespaces it is asked what may be done. If there are more, it is not known.
const MAX_NAMESPACES: usize = 256;
/// How many are listed: besides those the server's own, and one that would be too many.
const NAMESPACE_LIST_LIMIT: u32 = 258;
/// How many questions are asked at once.
const CONCURRENT_REVIEWS: usize = 8;
/// How many namespaces are named to users.
const MAX_NAMED_NAMESPACES: usize = 3;
/// With which verbs objects are restored.
const RESTORE_VERBS: [&str; 4] = ["create", "update", "patch", "*"];
/// Where everybody may ask about himself, which creates nothing.
const REVIEW_GROUPS: [&str; 2] = ["authorization.k8s.io", "authentication.k8s.io"];

/// What a server may write in a namespace.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum WritePermission {
    /// No object that is restored.
    Denied,
    /// Something, or it is not known.
    Possible,
}

/// Why nothing can be restored, if that is sure. The server's own namespace, in which it may always write
/// something, counts only for a restore that names it.
pub(super) async fn refusal(
    client: &Client,
    own_namespace: &str,
    restore: &RestoreSpec,
    backup: &BackupSpec,
) -> Option<String> {
    let asked = tokio::time::timeout(
        REVIEW_TIMEOUT,
        check_permissions(client, own_namespace, restore, backup),
    )
    .await;
    match asked {
        Ok(Ok(refusal)) => refusal,
        Ok(Err(error)) => {
            tracing::debug!("it is not known what may be restored: {}", status_message(&error));
            None
        }
        Err(_) => {
            tracing::debug!(
                "it is not known what may be restored: there is no answer in {REVIEW_TIMEOUT:?}"
            );
            None
        }
    }
}

async fn check_permissions(
    client: &Client,
    own_namespace: &str,
    restore: &RestoreSpec,
    backup: &BackupSpec,
) -> kube::Result<Option<String>> {
    if may_create_all(client).await? {
        return Ok(None);
    }
    let targets = target_namespaces(restore, backup);
    let namespaces = match &targets {
        Some(targets) => targets.clone(),
        None => other_namespaces(client, own_namespace).await?,
    };
    if namespaces.len() > MAX_NAMESPACES {
        return Ok(None);
    }
    let reviews: Api<SelfSubjectRulesReview> = Api::all(client.clone());
    let with_snapshots = names_snapshots(restore);
    let asked = namespaces.into_iter().map(|namespace| {
        let spec = SelfSubjectRulesReviewSpec { namespace: Some(namespace) };
        let review = SelfSubjectRulesReview { spec, ..SelfSubjectRulesReview::default() };
        let reviews = &reviews;
        async move { reviews.create(&PostParams::default(), &review).await }
    });
    let mut answers = stream::iter(asked).buffer_unordered(CONCURRENT_REVIEWS);
    while let Some(answer) = answers.next().await {
        if write_permission(answer?.status.as_ref(), with_snapshots) == WritePermission::Possible {
            return Ok(None);
        }
    }
    Ok(Some(refusal_message(targets.as_deref())))
}

/// Whether the server may create everything everywhere, as one of the full profile may.
async fn may_create_all(client: &Client) -> kube::Result<bool> {
    let everything = || Some("*".to_owned());
    let attributes = ResourceAttributes {
        verb: Some("create".to_owned()),
        group: everything(),
        resource: everything(),
        ..ResourceAttributes::default()
    };
    let spec = SelfSubjectAccessReviewSpec {
        resource_attributes: Some(attributes),
        ..SelfSubjectAccessReviewSpec::default()
    };
    let review = SelfSubjectAccessReview { spec, ..SelfSubjectAccessReview::default() };
    let reviews: Api<SelfSubjectAccessReview> = Api::all(client.clone());
    let answer = reviews.create(&PostParams::default(), &review).await?;
    // Without an answer it is not known.
    Ok(answer.status.is_none_or(|status| status.allowed))
}

/// The namespaces that objects go to, as far as the restore or else the backup names them. None if
/// that could be any.
fn target_namespaces(restore: &RestoreSpec, backup: &BackupSpec) -> Option<Vec<String>> {
    let is_named = |names: &Vec<String>| {
        !names.is_empty() && !names.iter().any(|name| name.contains(['*', '?', '[', '{']))
    };
    let named = [&restore.included_namespaces, &backup.included_namespaces];
    let named = named.into_iter().find(|names| is_named(names))?;
    let mapped = |name: &String| restore.namespace_mapping.get(name).unwrap_or(name).clone();
    Some(named.iter().map(mapped).collect())
}

/// All namespaces but the server's own, and one that is always there. In those that are not there yet
/// nobody may do more than in all.
async fn other_namespaces(client: &Client, own_namespace: &str) -> kube::Result<Vec<String>> {
    let namespaces: Api<Namespace> = Api::all(client.clone());
    let listed =
        namespaces.list_metadata(&ListParams::default().limit(NAMESPACE_LIST_LIMIT)).await?;
    let names = listed.items.iter().map(kube::ResourceExt::name_any);
    let names = names.filter(|name| name != own_namespace);
    let mut names: Vec<String> = names.collect();
    if names.is_empty() {
        names.push("default".to_owned());
    }
    Ok(names)
}

/// Whether a restore is of snapshots by name. The server has rights to those to back up.
fn names_snapshots(restore: &RestoreSpec) -> bool {
    let is_snapshot = |name: &String| {
        let name = name.to_lowercase();
        name.contains("snapshot") || name.starts_with("vs") || name.starts_with("vgs")
    };
    restore.included_resources.iter().any(is_snapshot)
}

/// What an answer allows. Snapshots alone are something only where they are asked for.
fn write_permission(
    answer: Option<&SubjectRulesReviewStatus>,
    with_snapshots: bool,
) -> WritePermission {
    let Some(answer) = answer else { return WritePermission::Possible };
    if answer.incomplete || answer.evaluation_error.as_ref().is_some_and(|error| !error.is_empty())
    {
        return WritePermission::Possible;
    }
    let granted = cluster_rules(Profile::BackupOnly);
    let is_granted = |group: &str, resource: &str| {
        let has = |list: &Option<Vec<String>>, text: &str| {
            list.as_ref().is_some_and(|list| list.iter().any(|one| one == text))
        };
        granted.iter().any(|rule| has(&rule.api_groups, group) && has(&rule.resources, resource))
    };
    let allows = |rule: &ResourceRule| {
        if !rule.verbs.iter().any(|verb| RESTORE_VERBS.contains(&verb.as_str())) {
            return false;
        }
        let groups = rule.api_groups.iter().flatten();
        groups.flat_map(|group| rule.resources.iter().flatten().map(move |one| (group, one))).any(
            |(group, resource)| {
                let is_part = resource.contains('/');
                let is_question = REVIEW_GROUPS.contains(&group.as_str());
                // Read as a grant of writing only where it names what it grants.
                let is_for_backups =
                    !with_snapshots && resource != "*" && is_granted(group, resource);
                !is_part && !is_question && !is_for_backups
            },
        )
    };
    if answer.resource_rules.iter().any(allows) {
        WritePermission::Possible
    } else {
        WritePermission::Denied
    }
}

/// What users are told.
fn refusal_message(targets: Option<&[String]>) -> String {
    let where_text = match targets {
        None => "any namespace".to_owned(),
        Some(names) => {
            let first = names.iter().take(MAX_NAMED_NAMESPACES).map(|name| format!("{name:?}"));
            let first = first.collect::<Vec<_>>().join(", ");
            let word = if names.len() == 1 { "namespace" } else { "namespaces" };
            match names.len().saturating_sub(MAX_NAMED_NAMESPACES) {
                0 => format!("the {word} {first}"),
                more => format!("the {word} {first} and {more} more"),
            }
        }
    };
    format!(
        "the API server does not let the server create anything that could be restored, neither in {where_text} \
         nor outside of namespaces; most likely it was installed with the profile `{}`; to restore, \
         install it again with `bowline install --profile {}` and the flags that it was installed with",
        Profile::BackupOnly,
        Profile::Full
    )
}

#[cfg(test)]
mod tests;
