use std::collections::BTreeMap;

use async_trait::async_trait;
use bowline_plugin::{Code, Kind, Result};
use parking_lot::Mutex;

use super::*;
use crate::RuleVerdict;
use crate::rule::RuleRunner;
use crate::test_support::{
    NoRestart, broken_rules, kept_rules, reported_leftovers, run_check, sample_input, sample_plugin,
};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Flaw {
    None,
    RefusesConfig,
    RefusesEmptyObjects,
    Truncates,
    AppendsInsteadOfReplacing,
    KeepsBrokenUploads,
    SaysThatAllExist,
    ReportsMissingObjectInStream,
    IgnoresThePrefix,
    ListsPrefixesTwice,
    GivesNoUrl,
    HasNoUrls,
    DeletesNothing,
    HangsInADelete,
    PermitsOnlyOneFolder,
}

/// A store in memory.
struct FakeStore {
    flaw: Flaw,
    objects: Mutex<BTreeMap<String, Vec<u8>>>,
}

impl FakeStore {
    /// Fails outside of the folder to which the permissions are limited.
    fn check_folder_permission(&self, key: &str) -> Result<()> {
        let is_permitted = key.starts_with("a/b/plugins/bowline-check-id/");
        if self.flaw == Flaw::PermitsOnlyOneFolder && !is_permitted {
            return Err(Error::new(Code::PermissionDenied, key));
        }
        Ok(())
    }
}

fn not_found() -> Error {
    Error::new(Code::NotFound, "not found")
}

#[async_trait]
impl ObjectStore for FakeStore {
    async fn init(&self, _: &Config) -> Result<()> {
        if self.flaw == Flaw::RefusesConfig { Err(Error::unknown("no")) } else { Ok(()) }
    }

    async fn put_object(&self, _: &str, key: &str, mut body: ByteStream) -> Result<()> {
        self.check_folder_permission(key)?;
        let mut content = Vec::new();
        let upload_result = loop {
            match body.try_next().await {
                Ok(Some(piece)) => content.extend(piece),
                Ok(None) => break Ok(()),
                Err(error) => break Err(Error::unknown(error.to_string())),
            }
        };
        if self.flaw == Flaw::RefusesEmptyObjects && content.is_empty() {
            return Err(Error::unknown("EOF"));
        }
        if self.flaw == Flaw::Truncates {
            content.truncate(MIB);
        }
        if upload_result.is_ok() || self.flaw == Flaw::KeepsBrokenUploads {
            let mut objects = self.objects.lock();
            let object = objects.entry(key.to_owned()).or_default();
            if self.flaw != Flaw::AppendsInsteadOfReplacing {
                object.clear();
            }
            object.extend(content);
        }
        upload_result
    }

    async fn object_exists(&self, _: &str, key: &str) -> Result<bool> {
        self.check_folder_permission(key)?;
        let exists = self.objects.lock().contains_key(key);
        Ok(exists || self.flaw == Flaw::SaysThatAllExist)
    }

    async fn get_object(&self, _: &str, key: &str) -> Result<ByteStream> {
        match self.objects.lock().get(key) {
            Some(content) => Ok(Box::pin(stream::iter([Ok(Bytes::from(content.clone()))]))),
            None if self.flaw == Flaw::ReportsMissingObjectInStream => {
                Ok(Box::pin(stream::iter([Err(io::Error::other(not_found()))])))
            }
            None => Err(not_found()),
        }
    }

    async fn list_common_prefixes(
        &self,
        bucket: &str,
        prefix: &str,
        delimiter: &str,
    ) -> Result<Vec<String>> {
        let keys = self.list_objects(bucket, prefix).await?;
        let up_to = |key: &String| {
            let (first, _) = key.strip_prefix(prefix)?.split_once(delimiter)?;
            Some(format!("{prefix}{first}{delimiter}"))
        };
        let mut prefixes: Vec<String> = keys.iter().filter_map(up_to).collect();
        if self.flaw != Flaw::ListsPrefixesTwice {
            prefixes.dedup();
        }
        Ok(prefixes)
    }

    async fn list_objects(&self, _: &str, prefix: &str) -> Result<Vec<String>> {
        self.check_folder_permission(prefix)?;
        let below = |key: &&String| key.starts_with(prefix) || self.flaw == Flaw::IgnoresThePrefix;
        Ok(self.objects.lock().keys().filter(below).cloned().collect())
    }

    async fn delete_object(&self, _: &str, key: &str) -> Result<()> {
        self.check_folder_permission(key)?;
        if self.flaw == Flaw::HangsInADelete && key.ends_with("/large") {
            std::future::pending::<()>().await;
        }
        if self.flaw == Flaw::DeletesNothing {
            return Ok(());
        }
        self.objects.lock().remove(key).map(drop).ok_or_else(not_found)
    }

    async fn create_signed_url(&self, _: &str, key: &str, _: Duration) -> Result<String> {
        if self.flaw == Flaw::HasNoUrls {
            return Err(Error::new(Code::Unimplemented, "no URLs here"));
        }
        Ok(if self.flaw == Flaw::GivesNoUrl { String::new() } else { format!("mem://{key}") })
    }
}

#[tokio::test(start_paused = true)]
async fn each_store_flaw_breaks_its_rule() {
    let clean_up = "all objects of the check are deleted";
    let expected: [(Flaw, &[&str]); 13] = [
        (Flaw::None, &[]),
        (Flaw::RefusesConfig, &["Init accepts the configuration"]),
        (Flaw::RefusesEmptyObjects, &["returns an empty object"]),
        (Flaw::Truncates, &["returns 8 MiB, put in pieces, as they were put"]),
        (Flaw::AppendsInsteadOfReplacing, &["replaces an object that is put again"]),
        (Flaw::KeepsBrokenUploads, &["keeps nothing of an interrupted upload"]),
        (
            Flaw::SaysThatAllExist,
            &[
                "ObjectExists reports whether an object exists",
                "keeps nothing of an interrupted upload",
                "deletes an object",
            ],
        ),
        (Flaw::ReportsMissingObjectInStream, &["GetObject of a missing object returns an error"]),
        (Flaw::IgnoresThePrefix, &["lists the objects below a prefix"]),
        (Flaw::ListsPrefixesTwice, &["lists common prefixes, each once"]),
        (Flaw::GivesNoUrl, &["CreateSignedURL returns a URL"]),
        (Flaw::HasNoUrls, &[]),
        (Flaw::DeletesNothing, &["deletes an object", clean_up]),
    ];
    for (flaw, rules) in expected {
        // An object of another owner, which is never touched.
        let others = BTreeMap::from([("others/key".to_owned(), b"precious".to_vec())]);
        let fake = Arc::new(FakeStore { flaw, objects: Mutex::new(others.clone()) });
        let plugin = sample_plugin(Kind::ObjectStore);
        let check =
            ObjectStoreCheck::new(plugin, fake.clone(), Arc::new(NoRestart), sample_input());
        let found =
            run_check(async |runner: &mut RuleRunner<'_>| check.check_rules(runner).await).await;
        assert_eq!(broken_rules(&found), rules, "{flaw:?}");
        match flaw {
            Flaw::RefusesConfig => assert_eq!(kept_rules(&found), [] as [&str; 0]),
            Flaw::DeletesNothing => assert!(fake.objects.lock().len() > 1),
            _ => assert_eq!(*fake.objects.lock(), others, "{flaw:?}"),
        }
    }
}

#[tokio::test(start_paused = true)]
async fn keys_stay_in_a_velero_folder_below_the_locations_prefix() {
    for prefix in ["a/b", "/a/b/"] {
        let fake = FakeStore { flaw: Flaw::PermitsOnlyOneFolder, objects: Mutex::default() };
        let config = Config::from([("prefix".to_owned(), prefix.to_owned())]);
        let input = Arc::new(Input { config, ..Input::clone(&sample_input()) });
        let plugin = sample_plugin(Kind::ObjectStore);
        let check = ObjectStoreCheck::new(plugin, Arc::new(fake), Arc::new(NoRestart), input);
        assert_eq!(check.config["prefix"], "a/b");
        let found =
            run_check(async |runner: &mut RuleRunner<'_>| check.check_rules(runner).await).await;
        assert_eq!(broken_rules(&found), [] as [&str; 0]);
    }
}

#[tokio::test(start_paused = true)]
async fn nothing_is_put_without_a_bucket() {
    let fake = Arc::new(FakeStore { flaw: Flaw::None, objects: Mutex::default() });
    let input = Arc::new(Input { bucket: None, ..Input::clone(&sample_input()) });
    let check =
        ObjectStoreCheck::new(sample_plugin(Kind::ObjectStore), fake, Arc::new(NoRestart), input);
    assert!(!check.config.contains_key("bucket"));
    let found =
        run_check(async |runner: &mut RuleRunner<'_>| check.check_rules(runner).await).await;
    assert_eq!(kept_rules(&found), ["Init accepts the configuration"]);
    let skipped = RuleVerdict::Skipped("name a scratch bucket with --bucket".into());
    assert!(found[1..].iter().all(|finding| finding.verdict == skipped), "{found:?}");
    assert_eq!(found.len(), RULES.len());
}

#[tokio::test(start_paused = true)]
async fn refusing_an_empty_configuration_is_not_a_violation() {
    for (config, bucket, verdict) in [
        (false, true, RuleVerdict::Skipped("no; give its configuration with --config".into())),
        (true, false, RuleVerdict::Skipped("no; name a scratch bucket with --bucket".into())),
        (true, true, RuleVerdict::Broken("no".into())),
    ] {
        let fake = Arc::new(FakeStore { flaw: Flaw::RefusesConfig, objects: Mutex::default() });
        let mut input = Input::clone(&sample_input());
        input.config.retain(|_, _| config);
        input.bucket = input.bucket.filter(|_| bucket);
        let store = sample_plugin(Kind::ObjectStore);
        let check = ObjectStoreCheck::new(store, fake, Arc::new(NoRestart), Arc::new(input));
        let found =
            run_check(async |runner: &mut RuleRunner<'_>| check.check_rules(runner).await).await;
        assert_eq!(found[0].verdict, verdict);
        assert_eq!(kept_rules(&found), [] as [&str; 0]);
    }
}

#[tokio::test(start_paused = true)]
async fn without_a_prefix_keys_are_in_the_plugins_folder() {
    let fake = Arc::new(FakeStore { flaw: Flaw::None, objects: Mutex::default() });
    let check = ObjectStoreCheck::new(
        sample_plugin(Kind::ObjectStore),
        fake,
        Arc::new(NoRestart),
        sample_input(),
    );
    assert_eq!(check.key("x"), "plugins/bowline-check-id/x");
}

#[tokio::test(start_paused = true)]
async fn undeleted_objects_are_named_and_all_others_removed() {
    let fake = Arc::new(FakeStore { flaw: Flaw::HangsInADelete, objects: Mutex::default() });
    let check = ObjectStoreCheck::new(
        sample_plugin(Kind::ObjectStore),
        fake.clone(),
        Arc::new(NoRestart),
        sample_input(),
    );
    let found =
        run_check(async |runner: &mut RuleRunner<'_>| check.check_rules(runner).await).await;
    let key = "plugins/bowline-check-id/large";
    assert!(fake.objects.lock().keys().eq([key]));
    // Two are already gone, which the store reports as an error.
    let reported = reported_leftovers(&found);
    assert!(
        reported.contains(&"object plugins/bowline-check-id/large in the bucket bowline-check")
    );
    assert_eq!(reported.len(), 3, "{reported:?}");
}
