//! A fixture set's tolerances, and goldens held against what a program made.

use std::collections::BTreeMap;
use std::fmt;
use std::path::{Path, PathBuf};

use serde::Deserialize;

use crate::{FileError, Tensor, read};

/// Which tolerance.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Class {
    /// Computed in f32.
    F32,
    /// Computed in 16 bit: a smoke test.
    LowP,
}

#[derive(Debug, Deserialize)]
struct IndexFile {
    files: BTreeMap<String, Entry>,
}

#[derive(Debug, Deserialize)]
struct Entry {
    tensors: Option<BTreeMap<String, Described>>,
}

#[derive(Debug, Deserialize)]
struct Described {
    #[serde(default)]
    tol_f32: f64,
    #[serde(default)]
    tol_lowp: f64,
}

/// `INDEX.json` of a fixture set: which files it has, their tensors and tolerances.
#[derive(Debug)]
pub struct Index {
    root: PathBuf,
    files: BTreeMap<String, Entry>,
}

/// A tensor that is not the golden one.
#[derive(Clone, Debug, PartialEq)]
pub struct Failure {
    /// The file, relative to the fixtures.
    pub file: String,
    /// The tensor.
    pub tensor: String,
    /// What came and what was wanted.
    pub problem: String,
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}: {}", self.file, self.tensor, self.problem)
    }
}

/// What a comparison found.
#[derive(Clone, Debug, Default)]
pub struct Compared {
    /// Tensors that both sides have.
    pub compared: usize,
    /// `file tensor` of the goldens that the program did not write.
    pub absent: Vec<String>,
    /// Tensors out of tolerance.
    pub failures: Vec<Failure>,
    /// Largest error as a share of its tolerance, and whose; tolerances of zero don't count.
    pub worst: (f64, String),
}

impl Compared {
    /// Takes in another comparison.
    pub fn add(&mut self, other: Compared) {
        self.compared += other.compared;
        self.absent.extend(other.absent);
        self.failures.extend(other.failures);
        if other.worst.0 > self.worst.0 {
            self.worst = other.worst;
        }
    }

    /// The first failures, one a line.
    pub fn report(&self) -> String {
        let mut lines: Vec<String> = self.failures.iter().take(12).map(Failure::to_string).collect();
        if self.failures.len() > lines.len() {
            lines.push(format!("and {} more", self.failures.len() - lines.len()));
        }
        lines.join("\n")
    }
}

impl Index {
    /// Reads `INDEX.json` in a fixture folder.
    ///
    /// # Errors
    /// What is wrong with the file.
    pub fn load(fixtures: &Path) -> Result<Self, FileError> {
        let path = fixtures.join("INDEX.json");
        let text = std::fs::read(&path).map_err(|e| FileError::new(&path, e))?;
        let index: IndexFile = serde_json::from_slice(&text).map_err(|e| FileError::new(&path, e))?;
        Ok(Index { root: fixtures.to_owned(), files: index.files })
    }

    /// Files that hold golden tensors, relative to the fixtures, in order of name.
    pub fn files(&self) -> impl Iterator<Item = &str> {
        self.files.iter().filter(|(_, e)| e.tensors.is_some()).map(|(name, _)| name.as_str())
    }

    /// The largest allowed distance; zero where the index names none.
    pub fn tolerance(&self, file: &str, tensor: &str, class: Class) -> f64 {
        let described = self.files.get(file).and_then(|e| e.tensors.as_ref()).and_then(|t| t.get(tensor));
        described.map_or(0.0, |d| match class {
            Class::F32 => d.tol_f32,
            Class::LowP => d.tol_lowp,
        })
    }

    /// Holds `got/file` against the golden file. A file that is not there has all its tensors absent.
    ///
    /// # Errors
    /// A file that can't be read.
    pub fn compare(&self, got: &Path, file: &str, class: Class) -> Result<Compared, FileError> {
        let golden = read(&self.root.join(file))?;
        let path = got.join(file);
        let got = if path.exists() { read(&path)? } else { Default::default() };
        let mut found = Compared::default();
        for (name, golden) in &golden {
            let Some(got) = got.get(name) else {
                found.absent.push(format!("{file} {name}"));
                continue;
            };
            found.compared += 1;
            let tolerance = self.tolerance(file, name, class);
            let problem = match distance(golden, got) {
                None => format!("shape {:?}, expected {:?}", got.dims, golden.dims),
                Some(off) => {
                    if tolerance > 0.0 && off / tolerance > found.worst.0 {
                        found.worst = (off / tolerance, format!("{file} {name}"));
                    }
                    if off <= tolerance {
                        continue;
                    }
                    format!("off by {off:.3e}, tolerance {tolerance:.1e}")
                }
            };
            found.failures.push(Failure { file: file.into(), tensor: name.clone(), problem });
        }
        Ok(found)
    }
}

/// Largest distance of two tensors, NaN where either holds one; `None` where the sides differ. An integer
/// golden of -1 matches anything: a rank that was too close to call.
pub(crate) fn distance(golden: &Tensor, got: &Tensor) -> Option<f64> {
    if golden.dims != got.dims {
        return None;
    }
    let wild = golden.is_integer();
    let pairs = golden.to_f64().into_iter().zip(got.to_f64());
    let distances = pairs.filter(|&(g, _)| !(wild && g == -1.0)).map(|(g, x)| (g - x).abs());
    Some(distances.fold(0.0, |worst: f64, d| if d.is_nan() || worst.is_nan() { f64::NAN } else { worst.max(d) }))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Values;

    #[test]
    fn minus_one_matches_anything_among_integers_alone() {
        let ids = |v: &[i64]| Tensor { dims: vec![v.len()], values: Values::I64(v.to_vec()) };
        assert_eq!(distance(&ids(&[3, -1]), &ids(&[3, 9])), Some(0.0));
        assert_eq!(distance(&ids(&[3, 2]), &ids(&[3, 9])), Some(7.0));
        let floats = |v: &[f32]| Tensor::f32(&[v.len()], v.to_vec());
        assert_eq!(distance(&floats(&[-1.0]), &floats(&[9.0])), Some(10.0));
        assert!(distance(&floats(&[0.0, 1.0]), &floats(&[f32::NAN, 1.0])).unwrap().is_nan());
        assert_eq!(distance(&floats(&[0.0]), &ids(&[0, 0])), None);
    }

    #[test]
    fn the_goldens_are_their_own_and_a_nan_fails() {
        let index = Index::load(&crate::fixtures()).unwrap();
        let mut all = Compared::default();
        for file in index.files() {
            all.add(index.compare(&crate::fixtures(), file, Class::F32).unwrap());
        }
        assert!(all.compared > 1900 && all.failures.is_empty() && all.absent.is_empty(), "{}", all.report());
        assert!(index.tolerance("qwen3_vl/text_text_64.safetensors", "logits_last", Class::F32) > 0.0);
    }
}
