//! Applies objects to the cluster. A dry run of all of them comes first, since half an installation is of no use.

use anyhow::{Context as _, anyhow, bail};
use kube::api::{DynamicObject, Patch, PatchParams};
use kube::core::{ApiResource, GroupVersionKind};
use kube::{Api, Discovery, ResourceExt as _};
use serde_json::Value;
use tokio::time::timeout;

use super::objects::{self, MANAGED_BY_LABEL, NAME};
use crate::installation::{API_TIMEOUT, Installation};
use crate::{active_runs, output};

/// API groups of the installed objects.
const GROUPS: [&str; 5] = ["", "apps", "policy", "rbac.authorization.k8s.io", bowline_api::GROUP];

/// Change to an object.
#[derive(Clone, Debug, PartialEq, Eq)]
enum ApplyOutcome {
    Created,
    Updated,
    UpToDate,
    /// The object is kept as it is, with the reason.
    Kept(String),
}

impl ApplyOutcome {
    /// Text: the change that was made, or would be.
    fn text(&self, is_done: bool) -> String {
        match (self, is_done) {
            (Self::Created, true) => "created".to_owned(),
            (Self::Created, false) => "would be created".to_owned(),
            (Self::Updated, true) => "updated".to_owned(),
            (Self::Updated, false) => "would be updated".to_owned(),
            (Self::UpToDate, _) => "up to date".to_owned(),
            (Self::Kept(reason), _) => reason.clone(),
        }
    }
}

/// Changes that would be made to the objects, one line each. Fails with all objections; nothing is changed.
pub(super) async fn check(
    installation: &Installation,
    objects: &[Value],
) -> anyhow::Result<Vec<String>> {
    let kinds = KnownKinds::discover(installation).await?;
    let (mut lines, mut refusals) = (Vec::new(), Vec::new());
    for object in objects {
        match apply_object(installation, &kinds, object, ApplyMode::Check).await {
            Ok(outcome) => {
                lines.push(format!("{}: {}", objects::title(object), outcome.text(false)));
            }
            Err(error) => refusals.push(output::error_chain(&error)),
        }
    }
    if !refusals.is_empty() {
        bail!("{}; nothing was changed", refusals.join("; and "));
    }
    Ok(lines)
}

/// Applies the objects and reports the change to each. `before` lists the changes already made.
pub(super) async fn apply_all(
    installation: &Installation,
    objects: &[Value],
    already_done: &str,
) -> anyhow::Result<()> {
    let kinds = KnownKinds::discover(installation)
        .await
        .map_err(|error| partial_install_error(&error, &[already_done]))?;
    let mut done = vec![already_done.to_owned()];
    for object in objects {
        let title = objects::title(object);
        let outcome = apply_object(installation, &kinds, object, ApplyMode::Apply).await;
        let outcome = outcome.map_err(|error| partial_install_error(&error, &done))?;
        output::print_message(format_args!("{title}: {}", outcome.text(true)));
        done.push(title);
    }
    Ok(())
}

/// Error after which a part is installed and the rest is not.
pub(super) fn partial_install_error(
    error: &anyhow::Error,
    done: &[impl AsRef<str>],
) -> anyhow::Error {
    let done: Vec<String> = done.iter().map(|one| one.as_ref().to_owned()).collect();
    anyhow!(
        "{}; the installation is incomplete; already applied: {}; fix the cause and run the same \
         command again to continue",
        output::error_chain(error),
        active_runs::first_names(&done),
    )
}

/// Kinds that the cluster serves.
struct KnownKinds(Discovery);

impl KnownKinds {
    async fn discover(installation: &Installation) -> anyhow::Result<Self> {
        let discovery = Discovery::new(installation.client()).filter(&GROUPS);
        let found = installation.call_api("discover the API resources", discovery.run()).await?;
        Ok(Self(found))
    }

    fn find(&self, kind: &GroupVersionKind) -> Option<ApiResource> {
        self.0.resolve_gvk(kind).map(|(resource, _)| resource)
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum ApplyMode {
    /// The API server reports the change without making it.
    Check,
    Apply,
}

async fn apply_object(
    installation: &Installation,
    kinds: &KnownKinds,
    object: &Value,
    mode: ApplyMode,
) -> anyhow::Result<ApplyOutcome> {
    let title = objects::title(object);
    timeout(API_TIMEOUT, apply_without_timeout(installation, kinds, object, mode))
        .await
        .unwrap_or_else(|_| {
            let limit = API_TIMEOUT.as_secs();
            Err(anyhow!("cannot install {title}: no response from the cluster within {limit} s"))
        })
}

async fn apply_without_timeout(
    installation: &Installation,
    kinds: &KnownKinds,
    object: &Value,
    mode: ApplyMode,
) -> anyhow::Result<ApplyOutcome> {
    let title = || format!("cannot install {}", objects::title(object));
    let object: DynamicObject = serde_json::from_value(object.clone())?;
    let kind = GroupVersionKind::try_from(&object.types.clone().unwrap_or_default())?;
    let is_check = mode == ApplyMode::Check;
    let Some(resource) = kinds.find(&kind) else {
        // An object whose definition is installed only later cannot exist, nor conflict with another.
        if is_check {
            return Ok(ApplyOutcome::Created);
        }
        bail!("{}: the cluster does not serve {}.{}", title(), kind.kind, kind.group);
    };
    let api: Api<DynamicObject> = match object.namespace() {
        Some(namespace) => Api::namespaced_with(installation.client(), &namespace, &resource),
        None => Api::all_with(installation.client(), &resource),
    };
    let name = object.name_any();
    let existing = api.get_opt(&name).await.with_context(title)?;
    let is_user_managed = objects::is_user_managed(&kind.kind);
    if let Some(existing) = &existing {
        // Other pods may run in the namespace that these labels would reject, Velero's among them.
        if kind.kind == "Namespace" {
            return Ok(ApplyOutcome::Kept(objects::kept_namespace_message(existing.labels())));
        }
        if let (false, Some(owner)) = (is_user_managed, other_owner(existing)) {
            bail!(
                "{} {name} exists but was not created by `bowline install` ({owner}); delete or \
                 rename it, or install into another namespace with --namespace",
                kind.kind
            );
        }
    }
    // Fields that others have set and this program does not stay as they are. Fields that both set are forced for the
    // server's objects, and a conflict for objects that belong to the user.
    let params = PatchParams {
        dry_run: is_check,
        force: !is_user_managed,
        field_manager: Some(NAME.to_owned()),
        ..PatchParams::default()
    };
    match api.patch(&name, &params, &Patch::Apply(&object)).await {
        Ok(after) => Ok(match existing {
            None => ApplyOutcome::Created,
            Some(existing) if is_same(&existing, &after) => ApplyOutcome::UpToDate,
            Some(_) => ApplyOutcome::Updated,
        }),
        // Its dependencies are created just before it: the namespace, a role.
        Err(kube::Error::Api(status)) if status.code == 404 && is_check && existing.is_none() => {
            Ok(ApplyOutcome::Created)
        }
        Err(kube::Error::Api(status)) if status.code == 409 => Err(anyhow!(
            "{0} {name} exists with different contents ({1}); change it with `kubectl edit {0} \
             {name}{2}`",
            kind.kind,
            status.message.split_whitespace().collect::<Vec<_>>().join(" "),
            object.namespace().map(|name| format!(" -n {name}")).unwrap_or_default(),
        )),
        Err(error) => Err(anyhow::Error::new(error).context(title())),
    }
}

/// Other manager of an object, if there is one.
fn other_owner(object: &DynamicObject) -> Option<String> {
    let mut owners = object.owner_references().iter();
    if let Some(owner) = owners.find(|owner| owner.controller == Some(true)) {
        return Some(format!("managed by {} {}", owner.kind, owner.name));
    }
    match object.labels().get(MANAGED_BY_LABEL).map(String::as_str) {
        Some(NAME) => None,
        Some(other) => Some(format!("managed by `{other}`")),
        None => Some(format!("no label {MANAGED_BY_LABEL}={NAME}")),
    }
}

/// True if nothing of importance has changed. The resource version is no indication in a dry run.
fn is_same(before: &DynamicObject, after: &DynamicObject) -> bool {
    before.data == after.data
        && before.labels() == after.labels()
        && before.annotations() == after.annotations()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn object(metadata: &Value) -> DynamicObject {
        let object = json!({
            "apiVersion": "apps/v1", "kind": "Deployment", "metadata": metadata, "spec": {"a": 1},
        });
        serde_json::from_value(object).unwrap()
    }

    #[test]
    fn object_with_our_label_is_ours_unless_controlled() {
        let our_labels = json!({MANAGED_BY_LABEL: NAME});
        assert_eq!(other_owner(&object(&json!({"name": "x", "labels": our_labels}))), None);
        let controller = json!([{
            "apiVersion": "v1", "kind": "Operator", "name": "o", "uid": "1", "controller": true,
        }]);
        for (metadata, expected) in [
            (json!({"name": "x"}), "no label"),
            (json!({"name": "x", "labels": {MANAGED_BY_LABEL: "Helm"}}), "`Helm`"),
            (
                json!({"name": "x", "labels": our_labels, "ownerReferences": controller}),
                "Operator o",
            ),
        ] {
            let owner = other_owner(&object(&metadata)).unwrap();
            assert!(owner.contains(expected), "{owner}");
        }
    }

    #[test]
    fn resource_version_and_managed_fields_are_no_change() {
        let one = object(&json!({"name": "x", "resourceVersion": "1"}));
        assert!(is_same(&one, &object(&json!({"name": "x", "resourceVersion": "2"}))));
        assert!(!is_same(&one, &object(&json!({"name": "x", "labels": {"a": "b"}}))));
        let mut other = one.clone();
        other.data["spec"]["a"] = json!(2);
        assert!(!is_same(&one, &other));
    }
}
