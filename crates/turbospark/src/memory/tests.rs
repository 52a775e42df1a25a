//! The plan for a shape of a published model, under what is free and what is asked for.

use turbospark_device::MemoryKind;

use super::plan::{Demand, PROGRAM_STEP};
use super::{Free, ResidencyChoice};
use crate::bench::{Shape, unit_sizes};
use crate::config::Config;

const MIB: u64 = 1 << 20;
const GIB: u64 = 1 << 30;

fn demand(name: &str) -> Demand {
    let config = Config::parse(&Shape::named(name).unwrap().config.to_string()).unwrap();
    Demand {
        sizes: unit_sizes(&config, [16.0, 16.0]),
        config,
        ceiling: None,
        free: None,
        kind: MemoryKind::Host,
        adapter: None,
        choice: ResidencyChoice::Auto,
        program: 20 * MIB,
        peak: 0,
        contexts: vec![(16_384, 1792 * MIB), (8192, 896 * MIB), (4096, 448 * MIB), (2048, 224 * MIB)],
        rows: 512,
        sequences: 1,
        threads: 2,
        most_patches: 65_536,
        keep_vision: false,
        gives_back: true,
    }
}

fn free(bytes: u64) -> Option<Free> {
    Some(Free { bytes, group: None })
}

#[test]
fn what_fits_into_what_is_free_is_mapped_and_has_no_ceiling() {
    let plan = Demand { free: free(32 * GIB), ..demand("qwen3-vl-2b") }.plan().unwrap();
    assert!(plan.ceiling.is_none() && !plan.streams() && !plan.residency.loaded);
    assert_eq!((plan.context, plan.most_patches), (16_384, 65_536));
    assert_eq!(plan, demand("qwen3-vl-2b").plan().unwrap(), "as where nobody asks");
}

#[test]
fn what_fits_but_for_the_largest_image_is_mapped_and_refuses_that() {
    let whole = demand("qwen3-vl-2b").plan().unwrap().total();
    let plan = Demand { free: free(whole), ..demand("qwen3-vl-2b") }.plan().unwrap();
    assert!(!plan.streams() && !plan.residency.loaded && plan.context == 16_384);
    assert!(plan.ceiling.is_some_and(|c| c < whole) && plan.most_patches < 65_536, "{plan:?}");
}

#[test]
fn what_does_not_fit_streams_within_what_is_free_less_a_reserve() {
    let plan = Demand { free: free(3 * GIB), ..demand("qwen3-vl-2b") }.plan().unwrap();
    assert!(plan.streams());
    assert_eq!(plan.ceiling, Some(3 * GIB - 192 * MIB + 20 * MIB));
    assert!(plan.total() <= plan.ceiling.unwrap() && plan.free.is_some());
    let asked = Demand { ceiling: plan.ceiling, ..demand("qwen3-vl-2b") }.plan().unwrap();
    assert_eq!(asked.terms, plan.terms, "as if it had been asked for");
    // The user's word counts, whatever is free.
    let asked = Demand { ceiling: Some(16 * GIB), free: free(GIB), ..demand("qwen3-vl-2b") }.plan().unwrap();
    assert!(!asked.streams() && asked.free.is_none());
}

#[test]
fn a_refusal_names_the_least_that_works_and_it_does() {
    for name in ["qwen3-vl-2b", "qwen3-vl-30b-a3b", "qwen3.5-35b-a3b"] {
        for sequences in [1, 8] {
            let with = |ceiling| Demand { ceiling: Some(ceiling), sequences, ..demand(name) };
            let said = with(100 * MIB).plan().unwrap_err().to_string();
            let least = said.split("--memory ").nth(1).and_then(|rest| rest.split('M').next()).unwrap();
            let least: u64 = least.parse().unwrap();
            assert!(with(least * MIB).plan().is_ok(), "{name}: {said}");
            // Another process may take a step more, and no less is enough for that.
            let later = |ceiling| {
                let now = with(ceiling);
                Demand { program: now.program + PROGRAM_STEP, ..now }
            };
            assert!(later(least * MIB).plan().is_ok(), "{name}: {said}");
            assert!(later((least - 1) * MIB).plan().is_err(), "{name}: {said}");
        }
    }
}

#[test]
fn a_refusal_says_whose_memory_it_is() {
    let group = Some(Free { bytes: 200 * MIB, group: Some("user/app".into()) });
    let said = Demand { free: group, ..demand("qwen3-vl-2b") }.plan().unwrap_err().to_string();
    assert!(said.contains("what the memory group user/app leaves"), "{said}");
    let opened = Demand { peak: 3 * GIB, ceiling: Some(2 * GIB), ..demand("qwen3-vl-2b") };
    let said = opened.plan().unwrap_err().to_string();
    assert!(said.contains("3072.0 MiB  was in use while the model was opened"), "{said}");
}

#[test]
fn more_sequences_threads_and_larger_images_take_more() {
    let total = |demand: Demand| demand.plan().unwrap().total();
    let plain = total(demand("qwen3-vl-2b"));
    // Logits of 151,936 tokens, thrice, and rows of images that all hold.
    assert!(total(Demand { sequences: 8, ..demand("qwen3-vl-2b") }) > plain + 7 * 3 * 4 * 151_936);
    assert_eq!(total(Demand { threads: 10, ..demand("qwen3-vl-2b") }), plain + 8 * (2 << 20));
    assert!(total(Demand { most_patches: 1024, ..demand("qwen3-vl-2b") }) < plain - GIB);
}

#[test]
fn what_more_memory_changes_is_told_up_to_where_all_fits() {
    let demand = Demand { ceiling: Some(2 * GIB), ..demand("qwen3-vl-2b") };
    let plan = demand.plan().unwrap();
    let more = demand.outlook(&plan);
    assert!((2..=4).contains(&more.len()));
    let reads: Vec<u64> = std::iter::once(&plan).chain(&more).map(|p| p.read_per_token).collect();
    assert!(reads.windows(2).all(|pair| pair[1] < pair[0]), "{reads:?}");
    assert_eq!(reads.last(), Some(&0));
    assert!(demand.outlook(more.last().unwrap()).is_empty());
}

#[test]
fn what_is_quantised_while_it_is_loaded_stays_or_is_refused() {
    let mut demand = Demand { ceiling: Some(16 * GIB), ..demand("qwen3-vl-2b") };
    demand.sizes.quantised = true;
    demand.sizes.largest_source = 600 * MIB;
    let plan = demand.plan().unwrap();
    assert!(!plan.streams() && plan.terms.iter().any(|t| t.what.contains("while it is quantised")));
    let said = Demand { ceiling: Some(2 * GIB), ..demand }.plan().unwrap_err().to_string();
    assert!(said.contains("turbospark pack --quant"), "{said}");
}

#[test]
fn what_is_forced_to_stay_fits_or_is_refused() {
    for choice in [ResidencyChoice::Mapped, ResidencyChoice::Loaded] {
        let with = |ceiling| Demand { ceiling: Some(ceiling), choice, ..demand("qwen3-vl-2b") };
        let plan = with(8 * GIB).plan().unwrap();
        assert!(!plan.streams() && plan.residency.loaded == (choice == ResidencyChoice::Loaded));
        assert!(with(2 * GIB).plan().unwrap_err().to_string().contains("keeps everything in memory"));
    }
}

#[test]
fn a_mixture_keeps_its_trunk_before_its_experts() {
    let plan = Demand { ceiling: Some(8 * GIB), ..demand("qwen3-vl-30b-a3b") }.plan().unwrap();
    assert!(plan.residency.layers.is_empty() && !plan.residency.head, "{:?}", plan.residency);
    assert!((1..48 * 128).contains(&plan.residency.expert_slots));
    assert!(
        plan.total() <= 8 * GIB && plan.total() > 8 * GIB - 8 * GIB / 64 - 10 * MIB,
        "what is left goes to experts"
    );
}

fn on_adapter(name: &str, own: u64) -> Demand {
    Demand { kind: MemoryKind::Own { bytes: Some(own) }, ..demand(name) }
}

#[test]
fn an_adapter_with_memory_of_its_own_has_a_budget_of_its_own() {
    let plan = Demand { ceiling: Some(2 * GIB), ..on_adapter("qwen3-vl-2b", 24 * GIB) }.plan().unwrap();
    assert!(!plan.streams(), "the weights aren't in the machine's memory");
    assert!(plan.total() <= 2 * GIB && plan.adapter_total() > 4 * GIB);
    assert_eq!(plan.adapter, Some(23 * GIB), "less a reserve");
    // Less than the weights: they are streamed through the adapter, whatever the machine has.
    let demand = Demand { free: free(64 * GIB), ..on_adapter("qwen3-vl-2b", 3 * GIB) };
    let plan = demand.plan().unwrap();
    assert!(plan.streams() && plan.adapter_total() <= plan.adapter.unwrap());
    assert!(plan.adapter_total() > plan.adapter.unwrap() * 9 / 10, "what is left goes to weights");
    // The user may allow less than there is.
    let asked = Demand { adapter: Some(2 * GIB), ..demand }.plan().unwrap();
    assert!(asked.adapter == Some(2 * GIB) && asked.read_per_token > plan.read_per_token);
}

#[test]
fn a_refusal_names_the_memory_that_is_too_small() {
    let said = on_adapter("qwen3-vl-2b", 300 * MIB).plan().unwrap_err().to_string();
    assert!(said.contains("the graphics adapter's memory, of which 236.0 MiB may be used"), "{said}");
    let small = Demand { ceiling: Some(64 * MIB), ..on_adapter("qwen3-vl-2b", 24 * GIB) };
    let said = small.plan().unwrap_err().to_string();
    assert!(said.starts_with("a memory of 64.0 MiB") && !said.contains("cache of"), "{said}");
    let least: u64 = said.split("--memory ").nth(1).and_then(|rest| rest.split('M').next()?.parse().ok()).unwrap();
    assert!(Demand { ceiling: Some(least * MIB), ..small }.plan().is_ok(), "{said}");
}

#[test]
fn what_is_on_its_way_to_an_adapter_counts_too() {
    let host = demand("qwen3-vl-2b").plan().unwrap();
    let staged = Demand { kind: MemoryKind::Staged, ..demand("qwen3-vl-2b") }.plan().unwrap();
    // The embedding is the largest tensor that is brought.
    assert!(staged.total() > host.total() + 2 * 151_936 * 2048 && staged.adapter_total() == 0);
    let streamed = Demand { kind: MemoryKind::Staged, ceiling: Some(2 * GIB), ..demand("qwen3-vl-2b") };
    let plan = streamed.plan().unwrap();
    assert!(plan.streams() && plan.residency.head && plan.total() <= 2 * GIB);
}
