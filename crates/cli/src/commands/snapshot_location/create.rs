//! `bowline snapshot-location create`

use std::collections::BTreeMap;

use bowline_api::snapshot_type::SnapshotType;
use bowline_api::{VolumeSnapshotLocation, VolumeSnapshotLocationSpec, annotation};
use bowline_store::BackupName;
use clap::builder::NonEmptyStringValueParser;
use k8s_openapi::api::core::v1::SecretKeySelector;

use crate::args::InstallationArgs;
use crate::exit::Exit;
use crate::flags::{self, Pairs};
use crate::installation::Installation;
use crate::listing::{self, ObjectFormat};
use crate::run;

/// Create a volume snapshot location
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Name of the location
    name: String,

    /// Provider: the name of a volume snapshotter plugin, such as aws
    #[arg(long, value_name = "NAME", value_parser = NonEmptyStringValueParser::new())]
    provider: String,

    /// Settings for the plugin
    #[arg(long, value_name = "KEY=VALUE,…", value_parser = flags::pairs)]
    config: Vec<Pairs>,

    /// Labels to add to the location
    #[arg(long, value_name = "KEY=VALUE,…", value_parser = flags::pairs)]
    labels: Vec<Pairs>,

    /// Secret and key with the credentials for this location [default: the server's]
    #[arg(long, value_name = "SECRET=KEY", value_parser = flags::credential)]
    credential: Option<SecretKeySelector>,

    /// Upload policy for snapshots, unless set in the backup [default: the server's, auto]
    #[arg(long, value_name = "TYPE", value_parser = flags::snapshot_type())]
    snapshot_type: Option<SnapshotType>,

    /// Print the location instead of creating it
    #[arg(short, long, value_name = "FORMAT")]
    output: Option<ObjectFormat>,
}

pub(crate) async fn run(args: Args, installation: &InstallationArgs) -> anyhow::Result<Exit> {
    let location = location(&args)?;
    if let Some(format) = args.output {
        return listing::print_without_creating(location, installation, format);
    }
    let installation = Installation::connect(installation).await?;
    listing::create_new(&installation, &location).await
}

/// Location that the command line requests.
fn location(args: &Args) -> anyhow::Result<VolumeSnapshotLocation> {
    let spec = VolumeSnapshotLocationSpec {
        provider: args.provider.clone(),
        config: flags::merged(&args.config),
        credential: args.credential.clone(),
        ..VolumeSnapshotLocationSpec::default()
    };
    // The same naming rule applies to all of Velero's kinds.
    let mut location = VolumeSnapshotLocation::new(BackupName::new(&args.name)?.as_str(), spec);
    let mut annotations = BTreeMap::new();
    if let Some(snapshot_type) = args.snapshot_type {
        annotations.insert(annotation::SNAPSHOT_TYPE.to_owned(), snapshot_type.to_string());
    }
    run::add_metadata(&mut location.metadata, flags::merged(&args.labels), annotations);
    Ok(location)
}

#[cfg(test)]
mod tests {
    use clap::Parser as _;
    use serde_json::{Value, json};

    use super::*;

    #[derive(Debug, clap::Parser)]
    struct TestCommand {
        #[command(flatten)]
        args: Args,
    }

    fn parse_location(line: &[&str]) -> anyhow::Result<Value> {
        let words = ["create", "l"].iter().chain(line);
        Ok(serde_json::to_value(location(&TestCommand::try_parse_from(words)?.args)?)?)
    }

    #[test]
    fn each_flag_sets_its_field() {
        let location = parse_location(&[
            "--provider=aws",
            "--config=region=x,profile=a",
            "--config=profile=y",
            "--credential=cloud=key",
            "--labels=a=b",
            "--snapshot-type=local",
        ]);
        assert_eq!(
            location.unwrap(),
            json!({
                "apiVersion": "velero.io/v1", "kind": "VolumeSnapshotLocation",
                "metadata": {
                    "name": "l", "labels": {"a": "b"},
                    "annotations": {"bowline.io/snapshot-type": "local"},
                },
                "spec": {
                    "provider": "aws", "config": {"region": "x", "profile": "y"},
                    "credential": {"name": "cloud", "key": "key"},
                },
            })
        );
    }

    #[test]
    fn unset_flags_are_left_to_the_server() {
        let location = parse_location(&["--provider=x.io/a"]).unwrap();
        assert_eq!(location["spec"], json!({"provider": "x.io/a"}));
        assert_eq!(location["metadata"], json!({"name": "l"}));
    }

    #[test]
    fn invalid_flags_are_refused() {
        for line in [
            &[][..],
            &["--provider="],
            &["--provider=aws", "--credential=cloud"],
            &["--provider=aws", "--config=region"],
            &["--provider=aws", "--snapshot-type=Cloud"],
        ] {
            assert!(parse_location(line).is_err(), "{line:?}");
        }
    }
}
