//! Whether a PersistentVolume can get its name, and which one it gets instead.
//!
//! Data is brought back only where no PersistentVolume of that name is there. One that is on its way
//! out, by itself or with its claim, is waited for; one that is in use stays, and so does its data. The
//! rules are those of Velero's `shouldRestore` and `shouldRenamePV`.

use std::collections::BTreeMap;
use std::time::Duration;

use serde_json::Value;
use tokio::time::Instant;

use super::super::{Context, apply};
use crate::journal::digest;

/// How often a PersistentVolume that is on its way out is looked at.
const PAUSE: Duration = Duration::from_secs(1);

/// What the name of a volume begins with that is restored beside the one that it was.
const CLONE: &str = "velero-clone-";

/// How it is with a name.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Standing {
    /// Nothing is called so.
    Free,
    /// It is what this very restore has made, before a restart.
    Ours,
    /// It is in use by somebody else.
    Taken,
    /// It will be free, and what is waited for.
    Going(String),
}

/// A PersistentVolume that is there.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Seen {
    /// Whether this restore has made it.
    pub(super) is_ours: bool,
    /// Whether it is being deleted.
    pub(super) is_going: bool,
    /// Whether its claim has let it go.
    pub(super) is_released: bool,
    /// Who has it.
    pub(super) claim: Option<Claim>,
}

/// The claim that a PersistentVolume belongs to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Claim {
    pub(super) namespace: String,
    pub(super) name: String,
    /// How it is with the claim.
    pub(super) itself: Presence,
    /// How it is with its namespace.
    pub(super) home: Presence,
}

/// Whether something is there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Presence {
    There,
    Going,
    Gone,
}

/// What a PersistentVolume that is there means for one that is to get its name.
pub(super) fn judge(seen: &Seen) -> Standing {
    let going = |what: String| Standing::Going(what);
    match seen {
        Seen { is_going: true, .. } => going("it is being deleted".to_owned()),
        Seen { is_ours: true, .. } => Standing::Ours,
        Seen { is_released: true, .. } => going("its claim is gone and has released it".to_owned()),
        Seen { claim: None, .. } => Standing::Taken,
        Seen { claim: Some(claim), .. } => {
            let Claim { namespace, name, .. } = claim;
            match (claim.itself, claim.home) {
                (Presence::There, Presence::There) => Standing::Taken,
                (Presence::Gone, _) => going(format!("its claim {namespace}/{name} is gone")),
                (Presence::Going, _) => {
                    going(format!("its claim {namespace}/{name} is being deleted"))
                }
                (_, Presence::Gone) => going(format!("its namespace {namespace} is gone")),
                (_, Presence::Going) => {
                    going(format!("its namespace {namespace} is being deleted"))
                }
            }
        }
    }
}

/// Looks how it is with a name.
pub(super) async fn look(context: &Context, name: &str) -> Result<Standing, String> {
    let world = context.world();
    let kind =
        |name| world.resources.core(name).ok_or_else(|| format!("the cluster serves no {name}"));
    let volumes = kind("persistentvolumes")?;
    let get = || context.cluster.get(volumes, "", name);
    let Some(found) = context.pace.ask(get).await.map_err(|error| error.to_string())? else {
        return Ok(Standing::Free);
    };
    let value: Value = found.item.parse().map_err(|error| error.to_string())?;
    let mut seen = Seen {
        is_ours: apply::is_of_this_restore(&context.request, context.began, &value),
        is_going: found.is_being_deleted,
        is_released: value.pointer("/status/phase").and_then(Value::as_str) == Some("Released"),
        claim: None,
    };
    // What is settled without needs no more looks.
    if judge(&seen) == Standing::Taken
        && let Some((namespace, name)) = claim_of(&value)
    {
        let presence = async |kind, namespace: &str, name: &str| {
            let get = || context.cluster.get(kind, namespace, name);
            let found = context.pace.ask(get).await.map_err(|error| error.to_string())?;
            Ok::<_, String>(match found {
                None => Presence::Gone,
                Some(found) if found.is_being_deleted => Presence::Going,
                Some(_) => Presence::There,
            })
        };
        let itself = presence(kind("persistentvolumeclaims")?, namespace, name).await?;
        let home = presence(kind("namespaces")?, "", namespace).await?;
        let (namespace, name) = (namespace.to_owned(), name.to_owned());
        seen.claim = Some(Claim { namespace, name, itself, home });
    }
    Ok(judge(&seen))
}

/// Looks how it is with a name, and waits until one that is on its way out is gone.
pub(super) async fn settle(context: &Context, name: &str) -> Result<Standing, String> {
    let limit = context.options.terminating_timeout;
    let deadline = Instant::now() + limit;
    loop {
        let why = match look(context, name).await? {
            Standing::Going(why) => why,
            settled => return Ok(settled),
        };
        if context.has_stopped() {
            return Err(format!("stopped while it waited for the PersistentVolume {name}: {why}"));
        }
        if Instant::now() >= deadline {
            return Err(format!(
                "the PersistentVolume {name} is still in the cluster after {} s, though {why}: \
                 delete it, or restore again when it is gone",
                limit.as_secs()
            ));
        }
        tracing::debug!(volume = name, "waiting for the one that is there: {why}");
        // What has been stopped is found out after the next look.
        context.stop.run_until_cancelled(tokio::time::sleep(PAUSE)).await;
    }
}

/// Whether a volume belongs to a claim that is restored to another namespace. There it needs a name
/// of its own if the one that it was is still in the cluster.
pub(super) fn is_mapped(volume: &Value, mapping: &BTreeMap<String, String>) -> bool {
    claim_of(volume).is_some_and(|(namespace, _)| mapping.contains_key(namespace))
}

/// Which claim has the PersistentVolume in the cluster that a claim in another namespace would need.
pub(super) async fn holder(context: &Context, volume: &Value) -> Result<Option<String>, String> {
    let mapping = &context.request.namespace_mapping;
    let Some((namespace, claim)) = claim_of(volume) else { return Ok(None) };
    let Some(mapped) = mapping.get(namespace) else { return Ok(None) };
    let world = context.world();
    let volumes = world.resources.core("persistentvolumes");
    let name = volume.pointer("/metadata/name").and_then(Value::as_str);
    let (Some(volumes), Some(name)) = (volumes, name) else { return Ok(None) };
    let get = || context.cluster.get(volumes, "", name);
    let Some(found) = context.pace.ask(get).await.map_err(|error| error.to_string())? else {
        return Ok(None);
    };
    let value: Value = found.item.parse().map_err(|error| error.to_string())?;
    let holder = claim_of(&value).filter(|holder| *holder != (mapped.as_str(), claim));
    Ok(holder.map(|(namespace, name)| format!("{namespace}/{name}")))
}

/// The name of a volume that is restored beside the one that it was. A restore that goes on after a
/// restart comes to the same.
pub(super) fn clone_name(restore: &str, volume: &str) -> String {
    let hash = digest(format!("{restore}/{volume}").as_bytes());
    // The form of a UUID whose bits are anybody's own choice.
    let part = |from: usize, to: usize| &hash[from..to];
    format!(
        "{CLONE}{}-{}-8{}-8{}-{}",
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
    fn a_name_is_free_taken_or_waited_for() {
        use Presence::{Going, Gone, There};
        let claimed = |itself, home| {
            let claim = Claim { namespace: "shop".into(), name: "data".into(), itself, home };
            Seen { claim: Some(claim), ..Seen::default() }
        };
        let going = |why: &str| Standing::Going(why.into());
        for (seen, expected) in [
            (Seen::default(), Standing::Taken),
            (claimed(There, There), Standing::Taken),
            (claimed(Gone, There), going("its claim shop/data is gone")),
            (claimed(Gone, Gone), going("its claim shop/data is gone")),
            (claimed(Going, There), going("its claim shop/data is being deleted")),
            (claimed(Going, Going), going("its claim shop/data is being deleted")),
            (claimed(There, Gone), going("its namespace shop is gone")),
            (claimed(There, Going), going("its namespace shop is being deleted")),
            (
                Seen { is_released: true, ..Seen::default() },
                going("its claim is gone and has released it"),
            ),
            (Seen { is_going: true, ..claimed(There, There) }, going("it is being deleted")),
            // Its claim may come only after it.
            (Seen { is_ours: true, ..claimed(Gone, There) }, Standing::Ours),
            (Seen { is_ours: true, is_released: true, ..Seen::default() }, Standing::Ours),
            (
                Seen { is_ours: true, is_going: true, ..Seen::default() },
                going("it is being deleted"),
            ),
        ] {
            assert_eq!(judge(&seen), expected, "{seen:?}");
        }
    }

    #[test]
    fn only_volumes_whose_claim_moves_need_another_name() {
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
    fn the_other_name_is_the_same_each_time_and_each_volumes_own() {
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
