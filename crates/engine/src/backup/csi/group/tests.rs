use tokio::time::sleep;

use super::*;
use crate::backup::csi::snapshot_watch::ERROR_GRACE;

#[test]
fn the_class_of_a_group_is_named_labelled_or_the_only_one() {
    let class = |name: &str, driver: &str, labels: &[(&str, &str)]| Class {
        name: name.into(),
        driver: driver.into(),
        labels: labels.iter().map(|(k, v)| ((*k).into(), (*v).into())).collect(),
        ..Class::default()
    };
    let named = |key: &str, name: &str| BTreeMap::from([(key.to_owned(), name.to_owned())]);
    let none = BTreeMap::new;
    let label = [("velero.io/csi-volumegroupsnapshot-class", "true")];
    let all = [class("a", "d.io", &[]), class("b", "d.io", &label), class("x", "x.io", &label)];
    let of_claim = |name| named("velero.io/csi-volume-group-snapshot-class", name);
    let of_backup = |name| named("velero.io/csi-volumegroupsnapshot-class_d.io", name);
    for (claim, backup, classes, chosen) in [
        (of_claim("a"), of_backup("b"), &all[..], Some("a")),
        (none(), of_backup("a"), &all[..], Some("a")),
        (of_claim("x"), none(), &all[..], None),
        (none(), none(), &all[..], Some("b")),
        (none(), none(), &all[..1], Some("a")),
        (none(), none(), &all[2..], None),
    ] {
        assert_eq!(choose("d.io", &claim, &backup, classes).ok().as_deref(), chosen);
    }
    let two = [class("a", "d.io", &label), class("b", "d.io", &label)];
    let ambiguous = choose("d.io", &none(), &none(), &two).unwrap_err().to_string();
    assert!(ambiguous.contains("several"), "{ambiguous}");
}

#[tokio::test(start_paused = true)]
async fn group_is_taken_once_it_has_a_handle_and_errors_count_after_the_grace_period() {
    let errors = LastingError::default();
    assert!(!errors.record(&json!({})));
    assert!(errors.record(&json!({"status": {"volumeGroupSnapshotHandle": "g"}})));
    let failing = |message: &str| json!({"status": {"error": {"message": message}}});
    let started_at = Instant::now();
    assert!(!errors.record(&failing("no")));
    let later = async {
        sleep(ERROR_GRACE / 2).await;
        assert!(!errors.record(&failing("still no")));
    };
    // Nothing changes at its end.
    let (error, ()) = tokio::join!(errors.wait_until_lasting(), later);
    assert_eq!((error.as_str(), started_at.elapsed()), ("still no", ERROR_GRACE));
    assert!(!errors.record(&json!({"status": {}})));
    assert!(!errors.record(&failing("no")));
    assert_eq!(errors.wait_until_lasting().await, "no");
    assert_eq!(started_at.elapsed(), ERROR_GRACE * 2, "it counts from anew");
}

#[test]
fn group_must_select_exactly_the_planned_claims() {
    let names = |all: &[&str]| all.iter().map(|name| (*name).to_owned()).collect();
    let check = |planned, labelled| check_members(&names(planned), &names(labelled));
    assert_eq!(check(&["a", "b"], &["a", "b"]), Ok(()));
    let more = check(&["a"], &["a", "b", "c", "d", "e", "f", "g"]).unwrap_err().to_string();
    assert!(more.ends_with("label: b, c, d, e, f and 1 more"), "{more}");
    let lost = check(&["a", "b"], &["a"]).unwrap_err().to_string();
    assert!(lost.contains("b no longer has the label"), "{lost}");
}
