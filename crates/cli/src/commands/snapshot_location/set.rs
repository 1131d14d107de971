//! `bowline snapshot-location set`

use anyhow::bail;
use bowline_api::snapshot_type::SnapshotType;
use bowline_api::{VolumeSnapshotLocation, annotation};
use k8s_openapi::api::core::v1::SecretKeySelector;
use serde_json::{Value, json};

use crate::args::InstallationArgs;
use crate::exit::Exit;
use crate::installation::Installation;
use crate::listing::{self, ResourceKind as _};
use crate::{flags, output};

/// Change a volume snapshot location
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Name of the location
    name: String,

    /// Secret and key with the credentials for this location
    #[arg(long, value_name = "SECRET=KEY", value_parser = flags::credential)]
    credential: Option<SecretKeySelector>,

    /// Upload policy for snapshots, unless set in the backup
    #[arg(long, value_name = "TYPE", value_parser = flags::snapshot_type())]
    snapshot_type: Option<SnapshotType>,
}

pub(crate) async fn run(args: Args, installation: &InstallationArgs) -> anyhow::Result<Exit> {
    let Some(patch) = patch(&args) else {
        bail!("nothing to change; add --credential or --snapshot-type");
    };
    let installation = Installation::connect(installation).await?;
    // Reports a location that does not exist, with a hint.
    listing::get::<VolumeSnapshotLocation>(&installation, &args.name).await?;
    listing::patch::<VolumeSnapshotLocation>(&installation, &args.name, &patch).await?;
    output::print_message(format_args!("{} `{}` changed", VolumeSnapshotLocation::NOUN, args.name));
    Ok(Exit::Success)
}

/// The changed fields and no others.
fn patch(args: &Args) -> Option<Value> {
    let mut patch = json!({});
    if let Some(SecretKeySelector { name, key, .. }) = &args.credential {
        patch["spec"] = json!({"credential": {"name": name, "key": key}});
    }
    if let Some(snapshot_type) = args.snapshot_type {
        let annotations = json!({annotation::SNAPSHOT_TYPE: snapshot_type.as_str()});
        patch["metadata"] = json!({"annotations": annotations});
    }
    (patch != json!({})).then_some(patch)
}

#[cfg(test)]
mod tests {
    use clap::Parser as _;

    use super::*;

    #[derive(Debug, clap::Parser)]
    struct TestCommand {
        #[command(flatten)]
        args: Args,
    }

    #[test]
    fn only_given_flags_are_changed() {
        let credential = json!({"credential": {"name": "s", "key": "k"}});
        let cloud = json!({"annotations": {"bowline.io/snapshot-type": "cloud"}});
        for (line, expected) in [
            (&[][..], None),
            (&["--credential=s=k"], Some(json!({"spec": credential}))),
            (&["--snapshot-type=cloud"], Some(json!({"metadata": cloud}))),
            (
                &["--credential=s=k", "--snapshot-type=cloud"],
                Some(json!({"spec": credential, "metadata": cloud})),
            ),
        ] {
            let words = ["set", "l"].iter().chain(line);
            let args = TestCommand::try_parse_from(words).unwrap().args;
            assert_eq!(patch(&args), expected, "{line:?}");
        }
    }
}
