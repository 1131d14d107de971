use super::*;

fn whole() -> Vec<Entry> {
    maps("shop", &["a", "b", "c", "d", "e", "f", "g", "h"])
}

/// Damaged archives, and the expected messages.
fn damaged() -> Vec<(&'static str, Vec<u8>)> {
    let archive = packed(&whole());
    let mut wrong_sum = archive.clone();
    let at = wrong_sum.len() - 8;
    wrong_sum[at] ^= 1;
    let cut = archive[..archive.len() - 3].to_vec();
    let and = |path: &str, content: &[u8]| {
        let mut entries = whole();
        entries.push((path.to_owned(), content.to_vec()));
        packed(&entries)
    };
    let path = "resources/configmaps/namespaces/shop/x.json";
    let other = serde_json::to_vec(&map("shop", "y")).unwrap();
    let deep = format!("{}1{}", "{\"a\":".repeat(100_000), "}".repeat(100_000));
    let deep = format!(
        r#"{{"apiVersion":"v1","kind":"ConfigMap","metadata":{{"name":"x","namespace":"shop"}},"data":{deep}}}"#
    );
    vec![
        ("ends early: ", wrong_sum),
        ("ends early: ", cut),
        ("not a JSON object", and(path, b"{\"kind\":")),
        ("not a JSON object", and(path, b"")),
        ("contains object", and(path, &other)),
        ("which no API server accepts", and(path, deep.as_bytes())),
        ("not normalized", and("resources/configmaps/namespaces/../x.json", b"{}")),
    ]
}

#[tokio::test]
async fn damaged_archive_is_refused_unless_allowed() {
    for (words, archive) in damaged() {
        let mut fixture = RestoreFixture { archive, counted: 9, ..RestoreFixture::new(&[]) };
        let restored = fixture.run().await;
        let fatal = restored.fatal.as_ref().expect(words);
        assert!(matches!(fatal, FatalError::Damaged { .. }), "{fatal:?}");
        let reason = fatal.error_chain();
        assert!(reason.contains(words) && reason.contains("--allow-damaged-archive"), "{reason}");
        assert!(reason.len() < 1000, "{reason}");
        assert_eq!(fixture.cluster.creations(), [], "{words}");
        assert_eq!((restored.items, restored.total), (0, 0));

        fixture.annotations = [(ALLOW_DAMAGED_ARCHIVE.to_owned(), "true".to_owned())].into();
        let restored = fixture.run().await;
        assert!(restored.fatal.is_none(), "{words}: {:?}", restored.fatal);
        assert!(restored.report.error_count() > 0, "{words}");
        assert_eq!(fixture.cluster.creations().len(), 9, "{words}: with their namespace");
        assert!(restored.total > restored.items, "{words}: it says that all is there");
        let status = finalize::status(&Restore::default(), &restored).progress.unwrap();
        assert!(status.total_items > status.items_restored, "{words}: {status:?}");
    }
}

#[tokio::test]
async fn archive_that_exceeds_a_limit_is_refused_with_the_flag_that_raises_it() {
    let limits = UnpackLimits::default();
    for (unpack_limits, flag) in [
        (UnpackLimits { total: 2000, ..limits }, "--archive-size-limit"),
        (UnpackLimits { spool: 100, ..limits }, "--archive-scratch-limit"),
        (UnpackLimits { index: 300, ..limits }, "--archive-index-limit"),
    ] {
        let fixture = RestoreFixture { unpack_limits, ..RestoreFixture::new(&whole()) };
        let restored = fixture.run().await;
        let reason = restored.fatal.expect(flag).error_chain();
        assert!(reason.contains(&format!("hint: raise {flag} of the server")), "{reason}");
        assert_eq!(fixture.cluster.creations(), [], "{flag}");
    }
}

#[tokio::test]
async fn unknown_archive_entries_are_no_damage() {
    let mut entries = whole();
    entries.push(("metadata/more".to_owned(), b"x".to_vec()));
    let fixture = RestoreFixture::new(&entries);
    let restored = fixture.run().await;
    assert!(restored.fatal.is_none(), "{:?}", restored.fatal);
    assert_eq!(fixture.cluster.creations().len(), 9);
    assert_eq!(restored.report.error_count(), 1, "it is told");
}

#[tokio::test]
async fn an_object_is_restored_however_deeply_it_is_nested() {
    for levels in [127, 128, 130, 400] {
        let widget = |name: &str, spec: Value| {
            json!({
                "apiVersion": "example.io/v1", "kind": "Widget",
                "metadata": {"namespace": "shop", "name": name}, "spec": spec,
            })
        };
        let entries = [
            entry("widgets.example.io", &widget("deep", nested(levels))),
            entry("widgets.example.io", &widget("flat", json!(1))),
        ];
        let mut fixture = RestoreFixture::of(with_widgets(&["v1"]), &entries);
        fixture.actions = vec![action(&["widgets.example.io"], |object, _| {
            object["metadata"]["labels"] = json!({"seen": "yes"});
        })];
        fixture.run_well().await;
        let restored = fixture.object("widgets.example.io", "shop", "deep").unwrap();
        assert_eq!(restored["spec"], nested(levels), "{levels}");
        assert_eq!(restored["metadata"]["labels"]["seen"], "yes");
        // Existing objects are compared, too.
        fixture.run_well().await;
    }
}

#[tokio::test]
async fn canceled_restore_reports_the_total_items() {
    let names: Vec<String> = (0..12).map(|number| format!("m{number:02}")).collect();
    let names: Vec<&str> = names.iter().map(String::as_str).collect();
    let mut fixture = RestoreFixture::new(&maps("shop", &names));
    fixture.items = 1;
    let cancel = fixture.cancel.clone();
    fixture.actions = vec![action(&["configmaps"], move |object, _| {
        if object["metadata"]["name"] == "m01" {
            cancel.cancel();
        }
    })];
    let restored = fixture.run().await;
    assert!(matches!(restored.fatal, Some(FatalError::Canceled)), "{:?}", restored.fatal);
    let status = finalize::status(&Restore::default(), &restored).progress.unwrap();
    assert_eq!(status.total_items, 12);
    assert!(status.items_restored < 12, "{status:?}");
}
