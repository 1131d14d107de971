//! Check that the server is allowed to restore at all. A server that was installed only for backups is not, and each
//! object would be a separate error, after volumes were created for nothing.
//!
//! Only certain cases are refused: restores of which no object could be created anywhere. Where the API server does not
//! list all rules, or does not answer in time, the restore continues and reports errors for each object.

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

/// Timeout of all reviews together.
const REVIEW_TIMEOUT: Duration = Duration::from_secs(10);
/// Maximum number of namespaces that are reviewed. With more, the result is unknown.
const MAX_NAMESPACES: usize = 256;
/// Limit of the list: [`MAX_NAMESPACES`], the server's own, and one to detect that there are too many.
const NAMESPACE_LIST_LIMIT: u32 = 258;
const CONCURRENT_REVIEWS: usize = 8;
/// Maximum number of namespaces in a message.
const MAX_NAMED_NAMESPACES: usize = 3;
const RESTORE_VERBS: [&str; 4] = ["create", "update", "patch", "*"];
/// API groups in which every user may review their own rights, which creates nothing.
const REVIEW_GROUPS: [&str; 2] = ["authorization.k8s.io", "authentication.k8s.io"];

/// Permission of the server to write in a namespace.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum WritePermission {
    /// No restored object can be written.
    Denied,
    /// Some can be written, or that is not known.
    Possible,
}

/// Reason why nothing can be restored, if that is certain. The server's own namespace, where it can always write
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
            tracing::debug!(
                "the permissions for the restore could not be checked: {}",
                status_message(&error)
            );
            None
        }
        Err(_) => {
            tracing::debug!(
                "the permissions for the restore could not be checked: no response within \
                 {REVIEW_TIMEOUT:?}"
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

/// True if the server may create everything everywhere, as with the full profile.
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
    // A review without a status leaves the question open.
    Ok(answer.status.is_none_or(|status| status.allowed))
}

/// Target namespaces, as far as the restore, or else the backup, names them. None if any namespace is possible.
fn target_namespaces(restore: &RestoreSpec, backup: &BackupSpec) -> Option<Vec<String>> {
    let is_named = |names: &Vec<String>| {
        !names.is_empty() && !names.iter().any(|name| name.contains(['*', '?', '[', '{']))
    };
    let named = [&restore.included_namespaces, &backup.included_namespaces];
    let named = named.into_iter().find(|names| is_named(names))?;
    let mapped = |name: &String| restore.namespace_mapping.get(name).unwrap_or(name).clone();
    Some(named.iter().map(mapped).collect())
}

/// All namespaces but the server's own, and one that always exists. In namespaces that do not exist yet, no user has
/// more rights than in all namespaces.
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

/// True if a restore names snapshot resources. The server has rights to those for backups.
fn names_snapshots(restore: &RestoreSpec) -> bool {
    let is_snapshot = |name: &String| {
        let name = name.to_lowercase();
        name.contains("snapshot") || name.starts_with("vs") || name.starts_with("vgs")
    };
    restore.included_resources.iter().any(is_snapshot)
}

/// Permission according to a review. Snapshots alone count only where the restore names them.
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
                // Taken as a grant for backups only if the rule names its resources.
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

/// Message for users.
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
        "the server has no permission to create objects in {where_text}, or cluster-scoped \
         objects; hint: the server was probably installed with `--profile={}`; run `bowline \
         install --profile={}` with all flags of the last installation",
        Profile::BackupOnly,
        Profile::Full
    )
}

#[cfg(test)]
mod tests;
