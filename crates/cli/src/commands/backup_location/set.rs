//! `bowline backup-location set`

use std::path::PathBuf;

use anyhow::bail;
use bowline_api::BackupStorageLocation;
use k8s_openapi::ByteString;
use k8s_openapi::api::core::v1::SecretKeySelector;
use serde_json::{Value, json};

use super::check_no_other_default;
use crate::args::InstallationArgs;
use crate::exit::Exit;
use crate::installation::Installation;
use crate::listing::{self, ResourceKind as _};
use crate::{flags, output, tls_trust};

/// Change a backup storage location
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Name of the location
    name: String,

    /// CA certificate file to trust for connections to the provider
    #[arg(long, value_name = "FILE")]
    cacert: Option<PathBuf>,

    /// Secret and key with the credentials for this location
    #[arg(long, value_name = "SECRET=KEY", value_parser = flags::credential)]
    credential: Option<SecretKeySelector>,

    /// Make this the default location for backups
    #[arg(long, value_name = "BOOL", num_args = 0..=1, require_equals = true,
          default_missing_value = "true", value_parser = flags::boolean)]
    default: Option<bool>,
}

pub(crate) async fn run(args: Args, installation: &InstallationArgs) -> anyhow::Result<Exit> {
    let certificates = args.cacert.as_deref().map(tls_trust::read_file).transpose()?;
    let Some(patch) = patch(&args, certificates) else {
        bail!("nothing to change; add --cacert, --credential or --default");
    };
    let installation = Installation::connect(installation).await?;
    // Reports a location that does not exist, with a hint.
    listing::get::<BackupStorageLocation>(&installation, &args.name).await?;
    if args.default == Some(true) {
        check_no_other_default(&installation, &args.name).await?;
    }
    listing::patch::<BackupStorageLocation>(&installation, &args.name, &patch).await?;
    output::print_message(format_args!("{} `{}` changed", BackupStorageLocation::NOUN, args.name));
    Ok(Exit::Success)
}

/// The changed fields and no others.
fn patch(args: &Args, certificates: Option<Vec<u8>>) -> Option<Value> {
    let mut spec = json!({});
    if let Some(pem) = certificates {
        spec["objectStorage"] = json!({"caCert": ByteString(pem)});
    }
    if let Some(SecretKeySelector { name, key, .. }) = &args.credential {
        spec["credential"] = json!({"name": name, "key": key});
    }
    if let Some(default) = args.default {
        spec["default"] = default.into();
    }
    (spec != json!({})).then(|| json!({"spec": spec}))
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
        for (line, expected) in [
            (&[][..], None),
            (&["--default"], Some(json!({"default": true}))),
            (&["--default=false"], Some(json!({"default": false}))),
            (&["--credential=s=k"], Some(json!({"credential": {"name": "s", "key": "k"}}))),
        ] {
            let words = ["set", "l"].iter().chain(line);
            let args = TestCommand::try_parse_from(words).unwrap().args;
            assert_eq!(patch(&args, None), expected.map(|spec| json!({"spec": spec})), "{line:?}");
        }
        let args = TestCommand::try_parse_from(["set", "l", "--cacert=f"]).unwrap().args;
        let expected = json!({"spec": {"objectStorage": {"caCert": "UEVN"}}});
        assert_eq!(patch(&args, Some(b"PEM".to_vec())), Some(expected));
    }
}
