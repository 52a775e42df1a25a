//! A whole model, its tower and experts read from the disk: several images share one reading of the tower, a cancelled
//! pass ends and leaves nothing wrong behind, a file that is replaced is not mixed with another.
#![cfg(feature = "device-cpu")]

use std::path::PathBuf;
use std::time::Duration;

use serde_json::{Value, json};
use turbospark::bench::{Shape, build_checkpoint};
use turbospark::{
    Cancel, Error, GenerateOptions, LoadOptions, Model, Pixels, Prompt, PromptParts, ResidencyChoice, Sampling, Visual,
    VisualSpan,
};
use turbospark_vision::{Grid, ImageConfig, Picture, Rgb};

/// The shape that takes a moment, with a small vocabulary; as a mixture where `experts`.
fn checkpoint(experts: bool) -> (tempfile::TempDir, PathBuf) {
    checkpoint_of(experts, json!({}))
}

/// The same with other sizes of the trunk.
fn checkpoint_of(experts: bool, sizes: Value) -> (tempfile::TempDir, PathBuf) {
    let mut config = Shape::named("tiny").unwrap().config;
    for (key, id) in [("image_token_id", 300), ("video_token_id", 301), ("vision_start_token_id", 302)] {
        config[key] = id.into();
    }
    config["vision_end_token_id"] = 303.into();
    config["text_config"]["vocab_size"] = 320.into();
    config["text_config"]["eos_token_id"] = 304.into();
    config["text_config"]["num_hidden_layers"] = 4.into();
    if experts {
        config["model_type"] = "qwen3_vl_moe".into();
        config["architectures"] = json!(["Qwen3VLMoeForConditionalGeneration"]);
        config["vision_config"]["model_type"] = "qwen3_vl_moe".into();
        let more: Value = json!({"num_experts": 16, "num_experts_per_tok": 2, "moe_intermediate_size": 64,
            "model_type": "qwen3_vl_moe_text"});
        config["text_config"].as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
    }
    let text = config["text_config"].as_object_mut().unwrap();
    text.extend(sizes.as_object().unwrap().clone());
    config["vision_config"]["out_hidden_size"] = config["text_config"]["hidden_size"].clone();
    let folder = tempfile::tempdir().unwrap();
    let shape = Shape { name: "small", config };
    let path = build_checkpoint(&shape, folder.path(), &Cancel::new(), &mut |_, _| ()).unwrap();
    (folder, path)
}

fn open(path: &PathBuf, residency: ResidencyChoice) -> Model {
    let options = LoadOptions { residency, context: Some(2048), sequences: 2, threads: Some(2), ..Default::default() };
    Model::open(path, &options).unwrap()
}

/// Noise of a width and height.
fn picture(model: &Model, width: usize, height: usize, seed: u8) -> Picture {
    let config: ImageConfig = model.image_config().unwrap().clone();
    let mut x = u32::from(seed) + 1;
    let data = (0..width * height * 3).map(|_| {
        x = x.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        (x >> 24) as u8
    });
    Picture::from_rgb(Rgb::new(width, height, data.collect()).unwrap(), &config, &Default::default()).unwrap()
}

/// A prompt of one picture and some text.
fn prompt(model: &Model, picture: Picture) -> Prompt {
    let Grid { t, h, w } = picture.grid;
    let tokens = t * h * w / 4;
    let text = [5, 17, 250];
    let ids: Vec<u32> = std::iter::repeat_n(300, tokens).chain(text).collect();
    let image = (0..tokens as u32).map(|i| [0, i / (w as u32 / 2), i % (w as u32 / 2)]);
    let next = (h.max(w) / 2) as u32;
    let positions: Vec<[u32; 3]> = image.chain((next..next + 3).map(|p| [p; 3])).collect();
    let digest = picture.digest;
    let visuals = vec![Visual { grid: picture.grid, digest, pixels: Pixels::Picture(picture.into()) }];
    let spans = vec![VisualSpan { range: 0..tokens, visual: 0, first_row: 0 }];
    let rope_delta = i64::from(next) - tokens as i64;
    let parts = PromptParts { ids, positions, visuals, spans, rope_delta };
    Prompt::new(parts, &model.prompt_limits()).unwrap()
}

fn bits(logits: &[f32]) -> Vec<u32> {
    logits.iter().map(|v| v.to_bits()).collect()
}

#[test]
fn several_images_share_one_reading_of_the_tower() {
    let (_folder, path) = checkpoint(false);
    let (resident, streamed) = (open(&path, ResidencyChoice::Loaded), open(&path, ResidencyChoice::Streamed));
    assert_eq!(resident.patches_at_once(), None);
    assert!(streamed.patches_at_once().is_some());
    let sizes = [(256, 256), (320, 288), (512, 256)];
    let prompts: Vec<Prompt> =
        (1u8..).zip(sizes).map(|(i, (w, h))| prompt(&streamed, picture(&streamed, w, h, i))).collect();
    let read = || streamed.reads().unwrap().bytes;
    let tower = streamed.memory_plan().read_per_image;

    let encode = |prompts: &[&Prompt]| {
        let before = read();
        let encoded = streamed.encode(prompts, &Cancel::new(), &mut |_| ()).unwrap();
        // What is read ahead for the next turn is no more than the slots hold.
        std::thread::sleep(Duration::from_millis(100));
        (encoded, read() - before)
    };
    // Three of four blocks, and the ends of blocks that reads begin at.
    let (slots, ends) = (tower * 3 / 4, 64 << 10);
    let (one, bytes_of_one) = encode(&[&prompts[0]]);
    let (all, bytes_of_all) = encode(&prompts.iter().collect::<Vec<_>>());
    assert_eq!((one.len(), all.len()), (1, 3));
    assert!((tower / 2..=tower + slots + ends).contains(&bytes_of_one), "{bytes_of_one} of a tower of {tower}");
    assert!(bytes_of_all <= tower + ends, "{bytes_of_all} of a tower of {tower} for three images");

    for prompt in &prompts {
        let logits = |model: &Model, ahead: bool| {
            let mut session = model.session();
            if ahead {
                session.take_encoded(&all);
            }
            let before = streamed.reads().unwrap();
            let done = session.prefill(prompt, &Cancel::new(), &mut |_| ()).unwrap();
            (bits(&done.logits), streamed.reads().unwrap().since(&before).bytes, done.encode)
        };
        let (expected, ..) = logits(&resident, false);
        let (ahead, trunk_alone, time) = logits(&streamed, true);
        let (anew, with_tower, _) = logits(&streamed, false);
        assert!(ahead == expected && anew == expected, "company changes no bit");
        assert!(trunk_alone < with_tower, "{trunk_alone} and {with_tower} bytes");
        assert!(time > Duration::ZERO, "the share of the time is told");
    }
}

#[test]
fn a_cancelled_pass_ends_reads_and_the_next_is_right() {
    for experts in [false, true] {
        let (_folder, path) = checkpoint(experts);
        let model = open(&path, ResidencyChoice::Streamed);
        let prompt = prompt(&model, picture(&model, 256, 256, 1));
        let answer = |model: &Model| {
            let options = GenerateOptions {
                sampling: Some(Sampling::default()),
                max_tokens: Some(6),
                ignore_eos: true,
                ..Default::default()
            };
            model.session().answer(&prompt, &options).unwrap().tokens
        };
        let expected = answer(&open(&path, ResidencyChoice::Loaded));
        let mut session = model.session();
        session.prefill(&prompt, &Cancel::new(), &mut |_| ()).unwrap();
        let cancel = Cancel::new();
        cancel.cancel();
        assert!(matches!(session.decode_until(expected[0], &cancel), Err(Error::Cancelled)));
        let settled = || {
            std::thread::sleep(Duration::from_millis(60));
            model.reads().unwrap().bytes
        };
        let bytes = settled();
        assert_eq!(settled(), bytes, "nothing is read for a pass that is over");
        session.decode(expected[0]).unwrap();
        assert_eq!(answer(&model), expected, "experts: {experts}");
    }
}

#[test]
fn a_pass_that_is_cancelled_from_another_thread_ends() {
    let (_folder, path) = checkpoint(true);
    let model = open(&path, ResidencyChoice::Streamed);
    let prompt = prompt(&model, picture(&model, 256, 256, 1));
    let cancel = Cancel::new();
    let switch = cancel.clone();
    let other = std::thread::spawn(move || {
        std::thread::sleep(Duration::from_millis(30));
        switch.cancel();
    });
    let options = GenerateOptions { ignore_eos: true, cancel, ..Default::default() };
    let answer = model.session().answer(&prompt, &options).unwrap();
    other.join().unwrap();
    assert_eq!(answer.finish_reason.as_str(), "cancelled");
}

#[test]
fn experts_are_counted_and_their_choices_noted() {
    let (_folder, path) = checkpoint(true);
    let model = open(&path, ResidencyChoice::Streamed);
    let prompt = prompt(&model, picture(&model, 256, 256, 1));
    model.note_routing(true);
    let mut session = model.session();
    session.prefill(&prompt, &Cancel::new(), &mut |_| ()).unwrap();
    assert_eq!(model.note_routing(true).iter().map(|(layer, _)| *layer).collect::<Vec<_>>(), [0, 1, 2, 3]);
    let before = model.reads().unwrap();
    session.decode(7).unwrap();
    let (choices, reads) = (model.note_routing(false), model.reads().unwrap().since(&before));
    assert!(choices.iter().all(|(_, experts)| experts.len() == 2) && choices.len() == 4, "{choices:?}");
    assert_eq!(reads.expert_hits + reads.expert_misses, 8);
    assert!(reads.expert_bytes <= reads.bytes);
    assert!((reads.expert_misses + reads.guesses == 0) == (reads.expert_bytes == 0), "{reads:?}");
    session.decode(8).unwrap();
    assert!(model.note_routing(false).is_empty());
}

#[test]
fn a_file_that_is_replaced_goes_on_with_the_old_bytes() {
    let (_folder, path) = checkpoint(false);
    let model = open(&path, ResidencyChoice::Streamed);
    let prompt = prompt(&model, picture(&model, 256, 256, 1));
    let logits = || bits(&model.session().prefill(&prompt, &Cancel::new(), &mut |_| ()).unwrap().logits);
    let before = logits();
    let file = path.join("model.safetensors");
    let other = path.join("other");
    std::fs::write(&other, vec![0; std::fs::metadata(&file).unwrap().len() as usize]).unwrap();
    std::fs::rename(&other, &file).unwrap();
    assert!(logits() == before);
}

#[test]
fn a_prompt_with_more_images_than_there_is_room_for_is_refused_with_both_numbers() {
    let (_folder, path) = checkpoint(false);
    let least = |memory| {
        let options = LoadOptions { memory: Some(memory), context: Some(8192), sequences: 1, ..Default::default() };
        Model::open(&path, &options)
    };
    let said = least(1 << 20).err().unwrap().to_string();
    let mib: u64 = said.split("--memory ").nth(1).and_then(|rest| rest.split('M').next()).unwrap().parse().unwrap();
    let model = least(mib << 20).unwrap();
    let room = model.memory_plan().most_patches;
    let large = prompt(&model, picture(&model, 512, 16 * (room / 32 + 2), 3));
    let patches = large.visuals()[0].grid.patches();
    assert!(patches > room && large.len() < 8192, "{patches} {room}");
    let error = model.session().prefill(&large, &Cancel::new(), &mut |_| ()).unwrap_err().to_string();
    assert!(error.contains(&format!("{patches} patches")) && error.contains(&format!("room for {room}")), "{error}");
}

#[test]
fn the_room_of_images_holds_weights_until_one_comes() {
    for experts in [false, true] {
        let sizes = json!({"hidden_size": 512, "intermediate_size": 2048, "moe_intermediate_size": 256,
            "num_attention_heads": 8, "num_key_value_heads": 4});
        let (_folder, path) = checkpoint_of(experts, sizes);
        let under = |memory| {
            let (context, threads) = (Some(2048), Some(2));
            let options = LoadOptions { memory, context, sequences: 1, threads, ..Default::default() };
            Model::open(&path, &options)
        };
        let said = under(Some(1 << 20)).err().unwrap().to_string();
        let mib: u64 = said.split("--memory ").nth(1).and_then(|rest| rest.split('M').next()).unwrap().parse().unwrap();
        let (model, resident) = (under(Some((mib + 1) << 20)).unwrap(), under(None).unwrap());
        let plan = model.memory_plan();
        assert!(plan.lent_bytes > 0 && plan.read_per_token < plan.read_beside_images, "{plan:?}");
        // Tokens before an image, right after it, and later; and what they read.
        let tokens = |model: &Model| {
            let prompt = prompt(model, picture(model, 256, 256, 1));
            let mut session = model.session();
            let (mut all, mut read) = (Vec::new(), Vec::new());
            let mut some = |session: &mut turbospark::Session| {
                let before = model.reads().unwrap_or_default();
                (0..4).for_each(|i| all.extend(bits(&session.decode(20 + i).unwrap())));
                read.push(model.reads().unwrap_or_default().since(&before).bytes);
            };
            some(&mut session);
            some(&mut session);
            session.prefill(&prompt, &Cancel::new(), &mut |_| ()).unwrap();
            (0..3).for_each(|_| some(&mut session));
            (all, read)
        };
        let (found, read) = tokens(&model);
        assert!(found == tokens(&resident).0, "experts: {experts}");
        assert!(read[1] < read[2] && read[4] < read[2], "experts: {experts}, read {read:?}");
    }
}
