//! Removing models: what is shared stays, and nothing outside the cache is touched.

mod server;

use std::fs;
use std::ops::ControlFlow;
use std::path::Path;

use server::{COMMIT, REPO, Repository, Server, noise, run, settings, sha256, spec};
use turbospark_hub::{Cache, Error, Event, pull};

fn fetch(cache: &Path, server: &Server, name: &str) {
    run(&settings(cache, server), name).unwrap();
}

fn single(commit: &str, config: &[u8]) -> Repository {
    let mut repository = Repository::new(&[("config.json", config), ("model.safetensors", &noise(7, 400_000))]);
    repository.commit = commit.into();
    repository
}

#[test]
fn a_removed_model_leaves_no_file() {
    let folder = tempfile::tempdir().unwrap();
    let server = Repository::sharded().serve(|_| None);
    fetch(folder.path(), &server, REPO);
    let other = folder.path().join("models--org--other/blobs");
    fs::create_dir_all(&other).unwrap();
    let cache = Cache::new(folder.path());
    let left = folder.path().join("models--org--name/blobs").join(format!("{}.incomplete", "a".repeat(64)));
    fs::write(left, [0; 100]).unwrap();
    let removal = cache.removal(&spec(REPO)).unwrap();
    let listed = cache.find(&spec(REPO)).unwrap().bytes();
    assert_eq!((removal.bytes, removal.commits.as_slice()), (listed + 100, &[COMMIT.to_owned()][..]));
    removal.apply().unwrap();
    assert!(!folder.path().join("models--org--name").exists());
    assert!(other.exists());
    assert!(matches!(cache.removal(&spec(REPO)), Err(Error::Nothing { .. })));
    assert!(matches!(cache.find(&spec(REPO)), Err(Error::NotHere { .. })));
}

#[test]
fn blobs_that_another_revision_uses_stay() {
    let folder = tempfile::tempdir().unwrap();
    let two = "2".repeat(40);
    fetch(folder.path(), &single(COMMIT, b"{}").serve(|_| None), "org/name@dev");
    fetch(folder.path(), &single(&two, b"{\"new\": 1}").serve(|_| None), REPO);
    let cache = Cache::new(folder.path());
    let weights = folder.path().join("models--org--name/blobs").join(sha256(&noise(7, 400_000)));
    let removal = cache.removal(&spec("org/name@dev")).unwrap();
    assert_eq!((removal.bytes, removal.commits.len()), (2, 1));
    removal.apply().unwrap();
    assert!(weights.is_file());
    assert!(cache.find(&spec("org/name@dev")).is_err());
    let kept = cache.find(&spec(REPO)).unwrap();
    assert_eq!(fs::read(kept.path.join("model.safetensors")).unwrap().len(), 400_000);
    let removal = cache.removal(&spec("org/name@2222222")).unwrap();
    assert_eq!(removal.bytes, 400_010);
    removal.apply().unwrap();
    assert!(!folder.path().join("models--org--name").exists(), "the last revision takes the folder along");
}

#[test]
fn all_revisions_go_where_none_is_named() {
    let folder = tempfile::tempdir().unwrap();
    fetch(folder.path(), &single(COMMIT, b"{}").serve(|_| None), "org/name@dev");
    fetch(folder.path(), &single(&"2".repeat(40), b"{}").serve(|_| None), REPO);
    let removal = Cache::new(folder.path()).removal(&spec(REPO)).unwrap();
    assert_eq!((removal.commits.len(), removal.bytes), (2, 400_002));
    removal.apply().unwrap();
    assert!(!folder.path().join("models--org--name").exists());
}

#[test]
fn one_quantisation_goes_and_the_vision_part_stays_for_the_others() {
    let folder = tempfile::tempdir().unwrap();
    let files: &[(&str, &[u8])] =
        &[("a-Q4_K_M.gguf", b"four"), ("a-Q8_0.gguf", b"eighteen"), ("mmproj-F16.gguf", b"f16")];
    let server = Repository::new(files).serve(|_| None);
    fetch(folder.path(), &server, "org/name:q4_k_m");
    fetch(folder.path(), &server, "org/name:q8_0");
    let cache = Cache::new(folder.path());
    assert!(matches!(cache.removal(&spec("org/name:q2_k")), Err(Error::Nothing { .. })));
    let removal = cache.removal(&spec("org/name:q8_0")).unwrap();
    assert_eq!((removal.bytes, removal.files.as_slice()), (8, &["a-Q8_0.gguf".to_owned()][..]));
    removal.apply().unwrap();
    let left = cache.find(&spec(REPO)).unwrap();
    assert_eq!(left.files.len(), 2, "{left:?}");
    let removal = cache.removal(&spec("org/name:q4_k_m")).unwrap();
    assert_eq!(removal.bytes, 7);
    removal.apply().unwrap();
    assert!(!folder.path().join("models--org--name").exists());
}

#[cfg(unix)]
#[test]
fn links_that_lead_outside_are_cut_and_not_followed() {
    use std::os::unix::fs::symlink;

    let folder = tempfile::tempdir().unwrap();
    let outside = folder.path().join("outside");
    fs::create_dir_all(outside.join("blobs")).unwrap();
    let name = "b".repeat(40);
    fs::write(outside.join("blobs").join(&name), "mine").unwrap();
    fs::write(outside.join(&name), "mine").unwrap();
    let root = folder.path().join("cache");
    fetch(&root, &single(COMMIT, b"{}").serve(|_| None), REPO);
    let repo = root.join("models--org--name");
    let snapshot = repo.join("snapshots").join(COMMIT);
    symlink(outside.join(&name), snapshot.join("absolute.json")).unwrap();
    symlink(format!("../../../../outside/blobs/{name}"), snapshot.join("relative.json")).unwrap();
    symlink(&outside, snapshot.join("folder")).unwrap();
    symlink(&outside, repo.join("snapshots").join("3".repeat(40))).unwrap();
    symlink(outside.join(&name), repo.join("blobs").join("c".repeat(64))).unwrap();
    let cache = Cache::new(&root);
    cache.list().unwrap();
    cache.removal(&spec(REPO)).unwrap().apply().unwrap();
    assert!(!repo.exists());
    assert_eq!(fs::read(outside.join(&name)).unwrap(), b"mine");
    assert_eq!(fs::read(outside.join("blobs").join(&name)).unwrap(), b"mine");

    // A model's folder that is itself elsewhere is its owner's affair.
    symlink(&outside, &repo).unwrap();
    assert!(matches!(cache.removal(&spec(REPO)), Err(Error::Outside { .. })));
    fs::remove_file(&repo).unwrap();
    fetch(&root, &single(COMMIT, b"{}").serve(|_| None), REPO);
    fs::remove_dir_all(repo.join("refs")).unwrap();
    symlink(&outside, repo.join("refs")).unwrap();
    assert!(matches!(cache.removal(&spec(REPO)), Err(Error::Outside { .. })));
}

#[test]
fn a_model_that_is_being_pulled_is_not_removed() {
    let folder = tempfile::tempdir().unwrap();
    let cache = Cache::new(folder.path());
    fetch(folder.path(), &single(COMMIT, b"{}").serve(|_| None), REPO);
    let mut busy = None;
    let server = single(&"2".repeat(40), b"{\"new\": 1}").serve(|_| None);
    pull(&spec(REPO), &settings(folder.path(), &server), &mut |event| {
        if let Event::File { .. } = event {
            busy = Some(cache.removal(&spec(REPO)).unwrap().apply());
        }
        ControlFlow::Continue(())
    })
    .unwrap();
    assert!(matches!(busy, Some(Err(Error::Busy { .. }))), "{busy:?}");
}

#[test]
fn what_other_programs_left_in_part_is_told_apart() {
    let folder = tempfile::tempdir().unwrap();
    let server = Repository::sharded().serve(|_| None);
    fetch(folder.path(), &server, REPO);
    let cache = Cache::new(folder.path());
    let snapshot = cache.find(&spec(REPO)).unwrap().path;
    for name in ["model-1.safetensors", "model-2.safetensors", "model.safetensors.index.json"] {
        fs::remove_file(snapshot.join(name)).unwrap();
    }
    let error = cache.find(&spec(REPO)).unwrap_err();
    assert!(
        matches!(&error, Error::Incomplete { .. }) && error.to_string().contains("turbospark pull org/name"),
        "{error}"
    );
    assert!(cache.list().unwrap().is_empty());
    fs::create_dir_all(folder.path().join("datasets--org--name")).unwrap();
    fs::create_dir_all(folder.path().join("models--odd")).unwrap();
    assert!(cache.list().unwrap().is_empty());
    assert!(Cache::new(folder.path().join("none")).list().unwrap().is_empty());
}
