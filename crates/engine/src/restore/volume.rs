//! Volumes and claims: which are created as they were, which anew, and which not at all.

use serde_json::Value;

use super::Context;
use super::reset::{self, Fate, Saved, Volume};
use crate::resource::GroupResource;

/// Makes a volume ready to be created. Returns why it is not to be.
pub(super) fn reset(
    context: &Context,
    name: &str,
    volume: &mut Value,
) -> Result<Option<String>, String> {
    match fate(context, name, volume) {
        Fate::AsIs => {
            reset::volume(volume, &context.request.namespace_mapping);
            Ok(None)
        }
        Fate::Reprovision(reason) => Ok(Some(reason)),
        Fate::Lacking(reason) => Err(format!("{reason}; {WAY_OUT}")),
    }
}

/// Makes a claim ready to be created. One whose data cannot be brought back is not.
pub(super) fn reset_claim(context: &Context, claim: &mut Value) -> Result<(), String> {
    let Some(name) = reset::claim_volume(claim).map(str::to_owned) else { return Ok(()) };
    let kind = GroupResource::new("", "persistentvolumes");
    let stored = context.contents.read(&kind, None, "", &name).ok();
    let Some(volume) = stored.and_then(|item| item.parse::<Value>().ok()) else {
        reset::claim(claim, Volume::Same);
        return Ok(());
    };
    match fate(context, &name, &volume) {
        Fate::AsIs => reset::claim(claim, Volume::Same),
        Fate::Reprovision(_) => reset::claim(claim, Volume::Provisioned),
        Fate::Lacking(reason) => {
            return Err(format!("its volume {name} is not restored: {reason}; {WAY_OUT}"));
        }
    }
    Ok(())
}

const WAY_OUT: &str = "to have it created empty, restore with `--allow-empty-volumes`";

fn fate(context: &Context, name: &str, volume: &Value) -> Fate {
    let known = &context.volumes;
    let claim = |pointer: &str| volume.pointer(pointer).and_then(Value::as_str).unwrap_or_default();
    let (namespace, claim) = (claim("/spec/claimRef/namespace"), claim("/spec/claimRef/name"));
    let saved = Saved {
        info: known.infos.iter().find(|info| info.pv_name == name),
        has_snapshot: known.snapshots.iter().any(|taken| taken.spec.persistent_volume_name == name),
        has_pod_volume_backup: known.pod_volume_backups.iter().any(|copy| {
            let annotations = copy.metadata.annotations.as_ref();
            let of = annotations.and_then(|a| a.get(bowline_api::annotation::PVC_NAME));
            let pod = copy.spec.pod.namespace.as_deref().unwrap_or_default();
            of.is_some_and(|of| of == claim) && pod == namespace
        }),
        has_csi_snapshot: false,
        has_data_upload: false,
    };
    reset::fate(volume, saved, context.request.volumes)
}
