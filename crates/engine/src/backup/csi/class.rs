//! Choice of the VolumeSnapshotClass for a claim.
//!
//! The rules are those of Velero, in its order: the class that the claim names, the one that the Backup names for the
//! driver, and of the classes of the driver the one that is labelled for backups, the default, or the only one.
//!
//! # Where we differ from Velero
//! - The driver is that of the volume. Velero uses the provisioner of the StorageClass, so that it can do nothing for
//!   a claim whose class is gone, or that never had one.
//! - A class that is named and cannot be used is reported before another one is used. Velero is silent.
//! - `is-default-class: "false"` is no default.

use std::collections::BTreeMap;

use bowline_api::{annotation, label};
use serde::Deserialize;

/// A VolumeSnapshotClass.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Class {
    /// Its name.
    pub name: String,
    /// The driver of the class.
    pub driver: String,
    /// Its labels.
    pub labels: BTreeMap<String, String>,
    /// Its annotations.
    pub annotations: BTreeMap<String, String>,
}

/// The chosen class.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ClassChoice<'a> {
    /// The class.
    pub class: &'a Class,
    /// Requested classes that are not used, with the reason.
    pub ignored: Vec<String>,
}

/// Failure to choose a class.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ClassError {
    /// The driver has no class.
    #[error(
        "no VolumeSnapshotClass exists for driver {driver}; create one if the driver supports \
         snapshots{}", ignored_suffix(.ignored)
    )]
    NoClass {
        /// The driver.
        driver: String,
        /// Requested classes that are not used, with the reason.
        ignored: Vec<String>,
    },
    /// The driver has several classes, and nothing determines which to use.
    #[error(
        "driver {driver} has several VolumeSnapshotClasses ({}); set the label {}=true on the \
         one to use{}", .classes.join(", "), label::VOLUME_SNAPSHOT_CLASS, ignored_suffix(.ignored)
    )]
    Ambiguous {
        /// The driver.
        driver: String,
        /// The classes.
        classes: Vec<String>,
        /// Requested classes that are not used, with the reason.
        ignored: Vec<String>,
    },
}

fn ignored_suffix(ignored: &[String]) -> String {
    if ignored.is_empty() { String::new() } else { format!(" ({})", ignored.join("; ")) }
}

#[derive(Deserialize)]
struct ClassObject {
    metadata: Metadata,
    #[serde(default)]
    driver: String,
}

#[derive(Deserialize)]
struct Metadata {
    name: String,
    labels: Option<BTreeMap<String, String>>,
    annotations: Option<BTreeMap<String, String>>,
}

impl Class {
    /// Parses an object.
    pub fn read(json: &[u8]) -> serde_json::Result<Self> {
        let ClassObject { metadata, driver } = serde_json::from_slice(json)?;
        Ok(Self {
            name: metadata.name,
            driver,
            labels: metadata.labels.unwrap_or_default(),
            annotations: metadata.annotations.unwrap_or_default(),
        })
    }

    fn is_labelled(&self) -> bool {
        self.labels.get(label::VOLUME_SNAPSHOT_CLASS).is_some_and(|value| value != "false")
    }

    fn is_default(&self) -> bool {
        let value = self.annotations.get(annotation::DEFAULT_SNAPSHOT_CLASS);
        value.is_some_and(|value| value == "true")
    }
}

/// Chooses a class for a claim. `claim` and `backup` are their annotations; classes are in the order of their names.
pub fn choose<'a>(
    driver: &str,
    claim: &BTreeMap<String, String>,
    backup: &BTreeMap<String, String>,
    classes: &'a [Class],
) -> Result<ClassChoice<'a>, ClassError> {
    let of_backup = format!("{}_{}", annotation::VOLUME_SNAPSHOT_CLASS, driver.to_lowercase());
    let named = [
        ("claim", claim.get(annotation::VOLUME_SNAPSHOT_CLASS)),
        ("backup", backup.get(&of_backup)),
    ];
    let mut ignored = Vec::new();
    for (by, name) in named.into_iter().filter_map(|(by, name)| Some((by, name?))) {
        let found = classes.iter().find(|class| class.name.eq_ignore_ascii_case(name));
        match found {
            Some(class) if class.driver.eq_ignore_ascii_case(driver) => {
                return Ok(ClassChoice { class, ignored });
            }
            Some(class) => ignored.push(format!(
                "VolumeSnapshotClass {name}, which the {by} names, belongs to driver {}",
                class.driver
            )),
            None => ignored
                .push(format!("VolumeSnapshotClass {name}, which the {by} names, does not exist")),
        }
    }
    let of_driver: Vec<&Class> = classes.iter().filter(|class| class.driver == driver).collect();
    let chosen = of_driver
        .iter()
        .find(|class| class.is_labelled())
        .or_else(|| of_driver.iter().find(|class| class.is_default()))
        .or(match of_driver.as_slice() {
            [only] => Some(only),
            _ => None,
        });
    let driver = driver.to_owned();
    match chosen {
        Some(class) => Ok(ClassChoice { class, ignored }),
        None if of_driver.is_empty() => Err(ClassError::NoClass { driver, ignored }),
        None => {
            let classes = of_driver.iter().map(|class| class.name.clone()).collect();
            Err(ClassError::Ambiguous { driver, classes, ignored })
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn class(name: &str, driver: &str, marks: &[(&str, &str)]) -> Class {
        let marks: BTreeMap<String, String> =
            marks.iter().map(|(key, value)| ((*key).into(), (*value).into())).collect();
        let (name, driver) = (name.into(), driver.into());
        Class { name, driver, labels: marks.clone(), annotations: marks }
    }

    fn named(key: &str, name: &str) -> BTreeMap<String, String> {
        BTreeMap::from([(key.to_owned(), name.to_owned())])
    }

    #[test]
    fn a_class_is_chosen_by_claim_backup_label_default_or_because_it_is_alone() {
        const LABEL: &str = label::VOLUME_SNAPSHOT_CLASS;
        const DEFAULT: &str = annotation::DEFAULT_SNAPSHOT_CLASS;
        let plain = || class("plain", "d.io", &[]);
        let all = vec![
            class("a", "d.io", &[]),
            class("b-default", "d.io", &[(DEFAULT, "true")]),
            class("c-labelled", "d.io", &[(LABEL, "true")]),
            class("d-labelled", "d.io", &[(LABEL, "")]),
            class("other", "x.io", &[(LABEL, "true"), (DEFAULT, "true")]),
        ];
        let none = BTreeMap::new;
        let of_claim = |name| named("velero.io/csi-volumesnapshot-class", name);
        let of_backup = |name| named("velero.io/csi-volumesnapshot-class_d.io", name);
        let no_class = Err("no VolumeSnapshotClass exists");
        for (what, claim, backup, classes, expected) in [
            ("the claim wins", of_claim("a"), of_backup("b-default"), all.clone(), Ok("a")),
            ("then the backup", none(), of_backup("A"), all.clone(), Ok("a")),
            ("one of another driver", of_claim("other"), none(), all.clone(), Ok("c-labelled")),
            ("one that is not there", of_claim("z"), of_backup("a"), all.clone(), Ok("a")),
            ("the first with the label", none(), none(), all.clone(), Ok("c-labelled")),
            ("the default", none(), none(), all[..2].to_vec(), Ok("b-default")),
            ("the only one", none(), none(), vec![plain(), all[4].clone()], Ok("plain")),
            (
                "one that says that it is neither",
                none(),
                none(),
                vec![plain(), class("q", "d.io", &[(LABEL, "false"), (DEFAULT, "false")])],
                Err("has several VolumeSnapshotClasses (plain, q)"),
            ),
            ("another driver's", none(), none(), vec![all[4].clone()], no_class),
            ("none at all", none(), none(), Vec::new(), no_class),
            (
                "in vain",
                of_claim("z"),
                none(),
                Vec::new(),
                Err("z, which the claim names, does not"),
            ),
        ] {
            let chosen = choose("d.io", &claim, &backup, &classes);
            match (chosen, expected) {
                (Ok(choice), Ok(name)) => assert_eq!(choice.class.name, name, "{what}"),
                (Err(error), Err(text)) => assert!(error.to_string().contains(text), "{error}"),
                (chosen, _) => panic!("{what}: {chosen:?}"),
            }
        }
        let choice = choose("d.io", &of_claim("other"), &of_backup("z"), &all).unwrap();
        assert_eq!(choice.ignored.len(), 2, "{:?}", choice.ignored);
        let upper = choose("D.io", &none(), &named(&format!("{LABEL}_d.io"), "a"), &all).unwrap();
        assert_eq!(upper.class.name, "a", "the driver is in lower case in the annotation");
    }
}
