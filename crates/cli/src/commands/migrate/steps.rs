//! Steps of a switch, with the commands to type.

use super::compatibility::supported_flags;
use super::facts::{Facts, Server};

/// Steps for a switch to Bowline.
pub(super) fn steps_to_bowline(facts: &Facts, namespace: &str) -> Vec<String> {
    let (install, name) =
        (install_command(facts.velero.as_ref(), namespace), velero_deployment_name(facts));
    vec![
        "wait until running backups and restores have ended; optionally pause schedules, so that \
         none is due during the switch"
            .to_owned(),
        format!("`kubectl scale deployment {name} -n {namespace} --replicas=0`"),
        format!(
            "{install}; use the image that you have pushed to a registry; an existing Secret \
             `cloud-credentials` is used, or replace --no-secret with --secret-file"
        ),
        format!(
            "run `bowline backup get -n {namespace}`, then back up and restore something small"
        ),
        format!(
            "delete Deployment {name} when you are sure; until then, `bowline migrate check \
             --back` shows whether you can switch back"
        ),
    ]
}

/// Steps for a switch back to Velero.
pub(super) fn steps_to_velero(facts: &Facts, namespace: &str) -> Vec<String> {
    let name = velero_deployment_name(facts);
    vec![
        format!("`bowline uninstall -n {namespace}`, which keeps backups, schedules and locations"),
        format!(
            "`kubectl scale deployment {name} -n {namespace} --replicas=1`, or install Velero again"
        ),
    ]
}

/// Name of Velero's Deployment.
fn velero_deployment_name(facts: &Facts) -> &str {
    facts.velero.as_ref().map_or("velero", |server| &server.name)
}

/// Command that installs Bowline's server in place of Velero's.
fn install_command(velero: Option<&Server>, namespace: &str) -> String {
    let image = concat!("--image=REGISTRY/bowline:v", env!("CARGO_PKG_VERSION"));
    let mut words = vec![
        format!("bowline install -n {namespace} {image} --profile=full --no-secret"),
        "--no-default-backup-location".to_owned(),
    ];
    let Some(server) = velero else {
        return format!(
            "`{}` with --plugins and, after `--`, the same flags as before",
            words.join(" ")
        );
    };
    if !server.plugins.is_empty() {
        words.push(shell_quoted(&format!("--plugins={}", server.plugins.join(","))));
    }
    let flags = supported_flags(server);
    if !flags.is_empty() {
        words.push("--".to_owned());
        words.extend(flags.into_iter().map(shell_quoted));
    }
    format!("`{}`", words.join(" "))
}

/// Word quoted for a shell.
fn shell_quoted(word: &str) -> String {
    let is_plain = |letter: char| letter.is_ascii_alphanumeric() || "-_./:=,@%+".contains(letter);
    if !word.is_empty() && word.chars().all(is_plain) {
        return word.to_owned();
    }
    format!("'{}'", word.replace('\'', r"'\''"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn install_command_has_plugins_and_supported_flags() {
        let texts = |texts: &[&str]| texts.iter().map(|&text| text.to_owned()).collect();
        let velero = Server {
            name: "nightly-velero".to_owned(),
            replicas: 1,
            flags: texts(&[
                "--features=EnableCSI",
                "--client-qps=30",
                "--concurrent-backups",
                "4",
                "--restore-resource-priorities=a,b,-,c d",
                "--teleport",
            ]),
            plugins: texts(&["x/a:v1", "x/b:v1"]),
        };
        let facts = Facts { velero: Some(velero), ..Facts::default() };
        let steps = steps_to_bowline(&facts, "backups");
        assert!(steps[1].contains("scale deployment nightly-velero -n backups"), "{steps:?}");
        assert!(steps_to_velero(&facts, "backups")[1].contains("scale deployment nightly-velero "));
        let step = &steps[2];
        assert!(
            step.starts_with("`bowline install -n backups --image=REGISTRY/bowline:v"),
            "{step}"
        );
        let end = "--plugins=x/a:v1,x/b:v1 -- --features=EnableCSI --concurrent-backups 4 \
                   '--restore-resource-priorities=a,b,-,c d'`;";
        assert!(step.contains(end), "{step}");
        assert!(steps_to_bowline(&Facts::default(), "velero")[2].contains("with --plugins and"));
    }

    #[test]
    fn words_are_quoted_where_a_shell_would_split_or_change_them() {
        for (word, expected) in [("--a=b,c", "--a=b,c"), ("a b", "'a b'"), ("", "''")] {
            assert_eq!(shell_quoted(word), expected);
        }
        assert_eq!(shell_quoted("it's $x"), r"'it'\''s $x'");
    }
}
