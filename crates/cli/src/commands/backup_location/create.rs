//! `bowline backup-location create`

use std::path::PathBuf;

use bowline_api::backup_storage_location::{AccessMode, ObjectStorageLocation};
use bowline_api::{BackupStorageLocation, BackupStorageLocationSpec, Duration};
use bowline_store::{BackupName, Prefix};
use k8s_openapi::ByteString;
use k8s_openapi::api::core::v1::SecretKeySelector;
use kube::ResourceExt as _;

use super::check_no_other_default;
use crate::args::InstallationArgs;
use crate::exit::Exit;
use crate::flags::{self, InvalidValue, Pairs};
use crate::installation::Installation;
use crate::listing::{self, ObjectFormat};
use crate::tls_trust;

/// Create a backup storage location
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Name of the location
    name: String,

    /// Provider: aws, filesystem, or the name of an object store plugin
    #[arg(long, value_name = "NAME")]
    provider: String,

    /// Bucket to use
    #[arg(long, value_name = "NAME", value_parser = bucket)]
    bucket: String,

    /// Prefix in the bucket [default: none]
    #[arg(long, value_name = "PATH")]
    prefix: Option<String>,

    /// Secret and key with the credentials for this location [default: the server's]
    #[arg(long, value_name = "SECRET=KEY", value_parser = flags::credential)]
    credential: Option<SecretKeySelector>,

    /// Make this the default location for backups
    #[arg(long)]
    default: bool,

    /// Interval at which backups found here are synced into the cluster; 0s for never [default: the
    /// server's, 1m]
    #[arg(long, value_name = "DURATION", value_parser = flags::duration)]
    backup_sync_period: Option<Duration>,

    /// Interval at which the location is validated; 0s to validate it only when a server starts and
    /// when the location changes [default: the server's, 1m]
    #[arg(long, value_name = "DURATION", value_parser = flags::duration)]
    validation_frequency: Option<Duration>,

    /// Settings for the provider
    #[arg(long, value_name = "KEY=VALUE,…", value_parser = flags::pairs)]
    config: Vec<Pairs>,

    /// Labels to add to the location
    #[arg(long, value_name = "KEY=VALUE,…", value_parser = flags::pairs)]
    labels: Vec<Pairs>,

    /// CA certificate file to trust for connections to the provider
    #[arg(long, value_name = "FILE")]
    cacert: Option<PathBuf>,

    /// Access mode of the location
    #[arg(long, value_name = "MODE", default_value = "ReadWrite")]
    access_mode: AccessModeArg,

    /// Print the location instead of creating it
    #[arg(short, long, value_name = "FORMAT")]
    output: Option<ObjectFormat>,
}

#[derive(Clone, Copy, Debug, clap::ValueEnum)]
#[value(rename_all = "PascalCase")]
enum AccessModeArg {
    /// Backups can be created, restored and deleted
    ReadWrite,
    /// Backups can only be restored
    ReadOnly,
}

pub(crate) async fn run(args: Args, installation: &InstallationArgs) -> anyhow::Result<Exit> {
    let certificates = args.cacert.as_deref().map(tls_trust::read_file).transpose()?;
    let location = location(&args, certificates)?;
    if let Some(format) = args.output {
        return listing::print_without_creating(location, installation, format);
    }
    let installation = Installation::connect(installation).await?;
    if args.default {
        check_no_other_default(&installation, &location.name_any()).await?;
    }
    listing::create_new(&installation, &location).await
}

/// Location that the command line requests.
fn location(args: &Args, certificates: Option<Vec<u8>>) -> anyhow::Result<BackupStorageLocation> {
    let prefix = args.prefix.clone().unwrap_or_default();
    // Reports now a prefix that the server could not use.
    Prefix::new(&prefix)?;
    let spec = BackupStorageLocationSpec {
        provider: args.provider.clone(),
        config: flags::merged(&args.config),
        credential: args.credential.clone(),
        object_storage: Some(ObjectStorageLocation {
            bucket: args.bucket.clone(),
            prefix,
            ca_cert: certificates.map(ByteString),
            ..ObjectStorageLocation::default()
        }),
        default: args.default,
        access_mode: Some(match args.access_mode {
            AccessModeArg::ReadWrite => AccessMode::ReadWrite,
            AccessModeArg::ReadOnly => AccessMode::ReadOnly,
        }),
        backup_sync_period: args.backup_sync_period,
        validation_frequency: args.validation_frequency,
        ..BackupStorageLocationSpec::default()
    };
    let mut location = BackupStorageLocation::new(BackupName::new(&args.name)?.as_str(), spec);
    let labels = flags::merged(&args.labels);
    location.metadata.labels = Some(labels).filter(|labels| !labels.is_empty());
    Ok(location)
}

fn bucket(text: &str) -> Result<String, InvalidValue> {
    match text {
        "" => Err(InvalidValue::Empty),
        text if text.contains('/') => Err(InvalidValue::BucketWithSlash),
        text => Ok(text.to_owned()),
    }
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
        let words = ["create", "l", "--provider", "aws", "--bucket", "b"].iter().chain(line);
        let args = TestCommand::try_parse_from(words)?.args;
        Ok(serde_json::to_value(location(&args, Some(b"PEM".to_vec()))?)?)
    }

    #[test]
    fn each_flag_sets_its_field() {
        let location = parse_location(&[
            "--prefix=p/q",
            "--credential=cloud=key",
            "--default",
            "--backup-sync-period=0s",
            "--validation-frequency=5m",
            "--config=region=x,s3Url=http://h",
            "--config=profile=y",
            "--labels=a=b",
            "--access-mode=ReadOnly",
        ]);
        assert_eq!(
            location.unwrap(),
            json!({
                "apiVersion": "velero.io/v1", "kind": "BackupStorageLocation",
                "metadata": {"name": "l", "labels": {"a": "b"}},
                "spec": {
                    "provider": "aws",
                    "config": {"region": "x", "s3Url": "http://h", "profile": "y"},
                    "credential": {"name": "cloud", "key": "key"},
                    "objectStorage": {"bucket": "b", "prefix": "p/q", "caCert": "UEVN"},
                    "default": true, "accessMode": "ReadOnly",
                    "backupSyncPeriod": "0s", "validationFrequency": "5m0s",
                },
            })
        );
    }

    #[test]
    fn unset_flags_are_left_to_the_server() {
        let location = parse_location(&[]).unwrap();
        let spec = json!({
            "provider": "aws", "accessMode": "ReadWrite",
            "objectStorage": {"bucket": "b", "caCert": "UEVN"},
        });
        assert_eq!(location["spec"], spec);
        assert_eq!(location["metadata"], json!({"name": "l"}));
    }

    #[test]
    fn invalid_flags_are_refused() {
        for line in [
            &["--prefix=../up"][..],
            &["--credential=cloud"],
            &["--backup-sync-period=-1s"],
            &["--config=region"],
            &["--access-mode=WriteOnly"],
        ] {
            assert!(parse_location(line).is_err(), "{line:?}");
        }
        let words = ["create", "l", "--provider=aws", "--bucket=b/p"];
        assert!(TestCommand::try_parse_from(words).unwrap_err().to_string().contains("--prefix"));
    }
}
