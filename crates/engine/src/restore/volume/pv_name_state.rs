//! Availability of PersistentVolume names, and the name to use instead.
//!
//! Data is restored only if no PersistentVolume of that name exists. The restore waits for one that is being
//! deleted, alone or with its claim; one that is in use stays, and so does its data. The rules are those of Velero's
//! `shouldRestore` and `shouldRenamePV`.

use std::collections::BTreeMap;
use std::time::Duration;

use bowline_plugin::InvalidItem;
use serde_json::Value;
use tokio::time::Instant;

use super::super::{Context, apply};
use crate::cluster;
use crate::journal::digest;

/// Interval between checks of a terminating PersistentVolume.
const POLL_INTERVAL: Duration = Duration::from_secs(1);

/// Name prefix of a volume that is restored next to the original.
const CLONE_PREFIX: &str = "velero-clone-";

/// Availability of a name.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum PvNameState {
    /// No PersistentVolume has the name.
    Free,
    /// This restore created the PersistentVolume, before a restart.
    CreatedByThisRestore,
    /// Another PersistentVolume has the name.
    InUse,
    /// The name will become free, for this reason.
    Terminating(TerminationReason),
}

/// Why an existing PersistentVolume is expected to go.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub(in crate::restore) enum TerminationReason {
    #[error("the PersistentVolume is being deleted")]
    Deleted,
    #[error("the PersistentVolume is released")]
    Released,
    #[error("claim {namespace}/{name} is gone")]
    ClaimGone { namespace: String, name: String },
    #[error("claim {namespace}/{name} is being deleted")]
    ClaimTerminating { namespace: String, name: String },
    #[error("namespace {0} is gone")]
    NamespaceGone(String),
    #[error("namespace {0} is being deleted")]
    NamespaceTerminating(String),
}

/// Why the availability of a name is unknown, or the name does not become free.
#[derive(Debug, thiserror::Error)]
pub(in crate::restore) enum PvNameError {
    #[error("the API server does not serve {0}")]
    NotServed(&'static str),
    #[error(transparent)]
    Cluster(#[from] cluster::Error),
    #[error(transparent)]
    Object(#[from] InvalidItem),
    #[error(
        "the restore was stopped while it waited for the deletion of PersistentVolume {name}: \
         {reason}"
    )]
    Stopped { name: String, reason: TerminationReason },
    #[error(
        "PersistentVolume {name} still exists after {} s, although {reason}; delete it, or \
         restore again when it is gone",
        limit.as_secs()
    )]
    StillInCluster { name: String, limit: Duration, reason: TerminationReason },
}

/// An existing PersistentVolume.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct ExistingPv {
    /// True if this restore created it.
    pub(super) is_from_this_restore: bool,
    /// True if it is being deleted.
    pub(super) is_terminating: bool,
    /// True if its claim has released it.
    pub(super) is_released: bool,
    /// The claim that holds it.
    pub(super) claim: Option<HoldingClaim>,
}

/// The claim that holds a PersistentVolume.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct HoldingClaim {
    pub(super) namespace: String,
    pub(super) name: String,
    /// State of the claim.
    pub(super) claim_presence: Presence,
    /// State of its namespace.
    pub(super) namespace_presence: Presence,
}

/// Existence of an object.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Presence {
    Present,
    Terminating,
    Gone,
}

/// Availability of the name of an existing PersistentVolume.
pub(super) fn judge_existing(pv: &ExistingPv) -> PvNameState {
    let reason = match pv {
        ExistingPv { is_terminating: true, .. } => TerminationReason::Deleted,
        ExistingPv { is_from_this_restore: true, .. } => return PvNameState::CreatedByThisRestore,
        ExistingPv { is_released: true, .. } => TerminationReason::Released,
        ExistingPv { claim: None, .. } => return PvNameState::InUse,
        ExistingPv { claim: Some(claim), .. } => {
            let (namespace, name) = (claim.namespace.clone(), claim.name.clone());
            match (claim.claim_presence, claim.namespace_presence) {
                (Presence::Present, Presence::Present) => return PvNameState::InUse,
                (Presence::Gone, _) => TerminationReason::ClaimGone { namespace, name },
                (Presence::Terminating, _) => {
                    TerminationReason::ClaimTerminating { namespace, name }
                }
                (_, Presence::Gone) => TerminationReason::NamespaceGone(namespace),
                (_, Presence::Terminating) => TerminationReason::NamespaceTerminating(namespace),
            }
        }
    };
    PvNameState::Terminating(reason)
}

/// Checks the availability of a name.
pub(super) async fn check_pv_name(
    context: &Context,
    name: &str,
) -> Result<PvNameState, PvNameError> {
    let served_api = context.served_api();
    let kind =
        |name: &'static str| served_api.resources.core(name).ok_or(PvNameError::NotServed(name));
    let volumes = kind("persistentvolumes")?;
    let get = || context.cluster.get(volumes, "", name);
    let Some(found) = context.rate_limiter.send(get).await? else { return Ok(PvNameState::Free) };
    let value: Value = found.item.parse()?;
    let mut pv = ExistingPv {
        is_from_this_restore: apply::is_of_this_restore(
            &context.request,
            context.started_at,
            &value,
        ),
        is_terminating: found.is_being_deleted,
        is_released: value.pointer("/status/phase").and_then(Value::as_str) == Some("Released"),
        claim: None,
    };
    // A verdict that does not depend on the claim needs no further lookups.
    if judge_existing(&pv) == PvNameState::InUse
        && let Some((namespace, name)) = claim_of(&value)
    {
        let presence = async |kind, namespace: &str, name: &str| {
            let get = || context.cluster.get(kind, namespace, name);
            Ok::<_, PvNameError>(match context.rate_limiter.send(get).await? {
                None => Presence::Gone,
                Some(found) if found.is_being_deleted => Presence::Terminating,
                Some(_) => Presence::Present,
            })
        };
        let claim_presence = presence(kind("persistentvolumeclaims")?, namespace, name).await?;
        let namespace_presence = presence(kind("namespaces")?, "", namespace).await?;
        let (namespace, name) = (namespace.to_owned(), name.to_owned());
        pv.claim = Some(HoldingClaim { namespace, name, claim_presence, namespace_presence });
    }
    Ok(judge_existing(&pv))
}

/// Checks the availability of a name, and waits until a terminating PersistentVolume is gone.
pub(super) async fn wait_for_pv_name(
    context: &Context,
    name: &str,
) -> Result<PvNameState, PvNameError> {
    let limit = context.options.terminating_timeout;
    let deadline = Instant::now() + limit;
    loop {
        let reason = match check_pv_name(context, name).await? {
            PvNameState::Terminating(reason) => reason,
            settled => return Ok(settled),
        };
        if context.has_stopped() {
            return Err(PvNameError::Stopped { name: name.to_owned(), reason });
        }
        if Instant::now() >= deadline {
            return Err(PvNameError::StillInCluster { name: name.to_owned(), limit, reason });
        }
        tracing::debug!(
            volume = name,
            "waiting for the deletion of the existing PersistentVolume: {reason}"
        );
        // A stop is noticed after the next check.
        context.stop.run_until_cancelled(tokio::time::sleep(POLL_INTERVAL)).await;
    }
}

/// True if a volume belongs to a claim that is restored to another namespace. There it needs a name of its own if the
/// original is still in the cluster.
pub(super) fn is_mapped(volume: &Value, mapping: &BTreeMap<String, String>) -> bool {
    claim_of(volume).is_some_and(|(namespace, _)| mapping.contains_key(namespace))
}

/// The claim that holds the PersistentVolume in the cluster that a claim in another namespace would need.
pub(super) async fn current_claim(
    context: &Context,
    volume: &Value,
) -> Result<Option<String>, PvNameError> {
    let mapping = &context.request.namespace_mapping;
    let Some((namespace, claim)) = claim_of(volume) else { return Ok(None) };
    let Some(mapped) = mapping.get(namespace) else { return Ok(None) };
    let served_api = context.served_api();
    let volumes = served_api.resources.core("persistentvolumes");
    let name = volume.pointer("/metadata/name").and_then(Value::as_str);
    let (Some(volumes), Some(name)) = (volumes, name) else { return Ok(None) };
    let get = || context.cluster.get(volumes, "", name);
    let Some(found) = context.rate_limiter.send(get).await? else { return Ok(None) };
    let value: Value = found.item.parse()?;
    let holder = claim_of(&value).filter(|holder| *holder != (mapped.as_str(), claim));
    Ok(holder.map(|(namespace, name)| format!("{namespace}/{name}")))
}

/// Name of a volume that is restored next to the original. A restore that resumes after a restart computes the same
/// name.
pub(super) fn clone_name(restore: &str, volume: &str) -> String {
    let hash = digest(format!("{restore}/{volume}").as_bytes());
    // Version 8 UUID: its bits are free to choose.
    let part = |from: usize, to: usize| &hash[from..to];
    format!(
        "{CLONE_PREFIX}{}-{}-8{}-8{}-{}",
        part(0, 8),
        part(8, 12),
        part(13, 16),
        part(17, 20),
        part(20, 32)
    )
}

fn claim_of(volume: &Value) -> Option<(&str, &str)> {
    let text = |field: &str| volume.pointer("/spec/claimRef")?.get(field)?.as_str();
    Some((text("namespace")?, text("name")?))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn existing_pv_is_in_use_terminating_or_from_this_restore() {
        use Presence::{Gone, Present, Terminating};
        let claimed = |claim_presence, namespace_presence| {
            let claim = HoldingClaim {
                namespace: "shop".into(),
                name: "data".into(),
                claim_presence,
                namespace_presence,
            };
            ExistingPv { claim: Some(claim), ..ExistingPv::default() }
        };
        let terminating = |reason: &str| Err(reason.to_owned());
        let judge = |pv: &ExistingPv| match judge_existing(pv) {
            PvNameState::Terminating(reason) => Err(reason.to_string()),
            settled => Ok(settled),
        };
        for (pv, expected) in [
            (ExistingPv::default(), Ok(PvNameState::InUse)),
            (claimed(Present, Present), Ok(PvNameState::InUse)),
            (claimed(Gone, Present), terminating("claim shop/data is gone")),
            (claimed(Gone, Gone), terminating("claim shop/data is gone")),
            (claimed(Terminating, Present), terminating("claim shop/data is being deleted")),
            (claimed(Terminating, Terminating), terminating("claim shop/data is being deleted")),
            (claimed(Present, Gone), terminating("namespace shop is gone")),
            (claimed(Present, Terminating), terminating("namespace shop is being deleted")),
            (
                ExistingPv { is_released: true, ..ExistingPv::default() },
                terminating("the PersistentVolume is released"),
            ),
            (
                ExistingPv { is_terminating: true, ..claimed(Present, Present) },
                terminating("the PersistentVolume is being deleted"),
            ),
            // The claim may be created only after the volume.
            (
                ExistingPv { is_from_this_restore: true, ..claimed(Gone, Present) },
                Ok(PvNameState::CreatedByThisRestore),
            ),
            (
                ExistingPv {
                    is_from_this_restore: true,
                    is_released: true,
                    ..ExistingPv::default()
                },
                Ok(PvNameState::CreatedByThisRestore),
            ),
            (
                ExistingPv {
                    is_from_this_restore: true,
                    is_terminating: true,
                    ..ExistingPv::default()
                },
                terminating("the PersistentVolume is being deleted"),
            ),
        ] {
            assert_eq!(judge(&pv), expected, "{pv:?}");
        }
    }

    #[test]
    fn only_volumes_of_mapped_claims_are_renamed() {
        let mapping = BTreeMap::from([("shop".to_owned(), "copy".to_owned())]);
        for (volume, expected) in [
            (json!({"spec": {"claimRef": {"namespace": "shop", "name": "data"}}}), true),
            (json!({"spec": {"claimRef": {"namespace": "copy", "name": "data"}}}), false),
            (json!({"spec": {"claimRef": {"name": "data"}}}), false),
            (json!({"spec": {}}), false),
        ] {
            assert_eq!(is_mapped(&volume, &mapping), expected, "{volume}");
        }
    }

    #[test]
    fn clone_name_is_stable_and_unique_per_volume() {
        let name = clone_name("uid", "pv-1");
        assert_eq!(name, clone_name("uid", "pv-1"));
        assert_ne!(name, clone_name("uid", "pv-2"));
        assert_ne!(name, clone_name("uid-2", "pv-1"));
        let uuid = name.strip_prefix("velero-clone-").unwrap();
        let lengths: Vec<usize> = uuid.split('-').map(str::len).collect();
        assert_eq!(lengths, [8, 4, 4, 4, 12], "{uuid}");
        assert!(uuid.chars().all(|letter| letter == '-' || letter.is_ascii_hexdigit()));
    }
}
