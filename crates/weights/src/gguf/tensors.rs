//! The list of tensors, held against itself and the file.

use turbospark_tensor::DType;

use super::{cursor::Cursor, types::GgmlType};
use crate::{Error, HeaderError, Result, TensorError, error::shorten};

/// No real name comes near it; it bounds messages and comparisons.
const MAX_NAME_BYTES: usize = 1024;

/// Twice as many sides as the format's own programs read.
const MAX_RANK: u32 = 8;

/// Length of an empty name, no sides, a type and an offset.
const MIN_INFO_BYTES: u64 = 8 + 4 + 4 + 8;

/// One tensor as its file describes it, checked against the file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GgufTensor {
    /// Its name in the file.
    pub name: String,
    /// How its elements are stored, if this build reads such.
    pub dtype: Option<DType>,
    /// The type's name, whether it is read or not.
    pub type_name: String,
    /// Its sides, outermost first; the file has them the other way round.
    pub dims: Vec<u64>,
    /// First byte, counted from the file's beginning.
    pub offset: u64,
    /// Number of bytes: what type and sides take, or for a type of unknown size all up to the next tensor.
    pub length: u64,
}

/// A tensor whose offset still counts from the beginning of the data, and whose size may be unknown.
struct Info {
    name: String,
    kind: GgmlType,
    dims: Vec<u64>,
    begin: u64,
    length: Option<u64>,
}

impl Info {
    /// Bytes that it has at least.
    fn least(&self) -> u64 {
        self.length.unwrap_or_else(|| u64::from(!self.dims.contains(&0)))
    }
}

pub(super) fn read(cursor: &mut Cursor, count: u64, alignment: u64) -> Result<Vec<GgufTensor>> {
    cursor.expect(count, MIN_INFO_BYTES, &"the list of tensors")?;
    let mut infos = Vec::new();
    for i in 0..count {
        infos.push(info(cursor, i, alignment)?);
    }
    let file = cursor.file();
    let refuse = |name: &str, problem| Error::Tensor { file: file.name().to_owned(), name: shorten(name), problem };
    if infos.is_empty() {
        return Ok(Vec::new());
    }
    let Some(data) = file.length().checked_sub(cursor.position().next_multiple_of(alignment)) else {
        return Err(Error::Header { file: file.name().to_owned(), problem: HeaderError::NoData(file.length()) });
    };

    let mut order: Vec<usize> = (0..infos.len()).collect();
    order.sort_unstable_by_key(|&i| &infos[i].name);
    if let Some(pair) = order.windows(2).find(|pair| infos[pair[0]].name == infos[pair[1]].name) {
        return Err(refuse(&infos[pair[0]].name, TensorError::Duplicate));
    }
    // By place; an empty tensor may share its place with the one that follows.
    order.sort_unstable_by_key(|&i| (infos[i].begin, infos[i].least(), i));
    let mut before: Option<(u64, usize)> = None;
    for &i in &order {
        let (begin, least) = (infos[i].begin, infos[i].least());
        let Some(end) = begin.checked_add(least).filter(|&end| end <= data) else {
            let end = begin.saturating_add(least);
            return Err(refuse(&infos[i].name, TensorError::Offsets { begin, end, data }));
        };
        if let Some((taken, other)) = before.filter(|&(taken, _)| taken > begin) {
            let other = shorten(&infos[other].name);
            return Err(refuse(&infos[i].name, TensorError::Overlap { begin, other, end: taken }));
        }
        before = Some((end, i));
    }
    for (&i, next) in order.iter().zip(order.iter().skip(1).map(Some).chain([None])) {
        let next = next.map_or(data, |&next| infos[next].begin);
        let info = &mut infos[i];
        info.length.get_or_insert(next - info.begin);
    }

    let data_begin = file.length() - data;
    let tensor = |info: Info| GgufTensor {
        name: info.name,
        dtype: info.kind.dtype,
        type_name: info.kind.name,
        dims: info.dims,
        offset: data_begin + info.begin,
        length: info.length.expect("set above where it was unknown"),
    };
    Ok(infos.into_iter().map(tensor).collect())
}

fn info(cursor: &mut Cursor, i: u64, alignment: u64) -> Result<Info> {
    let file = cursor.file();
    let refuse = |name: &str, problem| Error::Tensor { file: file.name().to_owned(), name: shorten(name), problem };
    let bytes = cursor.text(&format_args!("tensor {i}"))?;
    let length = bytes.len();
    let name =
        String::from_utf8(bytes).map_err(|e| refuse(&String::from_utf8_lossy(e.as_bytes()), TensorError::NotText))?;
    if name.is_empty() || length > MAX_NAME_BYTES {
        return Err(refuse(&name, TensorError::Name(length)));
    }
    let what = format!("tensor {:?}", shorten(&name));
    let rank = cursor.u32(&what)?;
    if rank > MAX_RANK {
        return Err(refuse(&name, TensorError::Rank { rank, most: MAX_RANK }));
    }
    let mut dims = (0..rank).map(|_| cursor.u64(&what)).collect::<Result<Vec<_>>>()?;
    dims.reverse();
    let kind = GgmlType::of(cursor.u32(&what)?);
    let begin = cursor.u64(&what)?;
    if begin % alignment != 0 {
        return Err(refuse(&name, TensorError::Unaligned { begin, alignment }));
    }
    let length = length_of(&kind, &dims).map_err(|problem| refuse(&name, problem))?;
    Ok(Info { name, kind, dims, begin, length })
}

/// Bytes by type and sides, or `None` where the type's size is unknown.
fn length_of(kind: &GgmlType, dims: &[u64]) -> std::result::Result<Option<u64>, TensorError> {
    let size = || TensorError::Size { dtype: kind.name.clone(), shape: dims.to_vec() };
    let elements = dims.iter().try_fold(1u64, |n, &side| n.checked_mul(side)).ok_or_else(size)?;
    let Some((block, bytes)) = kind.block else { return Ok(None) };
    let row = dims.last().copied().unwrap_or(1);
    if row % block != 0 {
        return Err(TensorError::Row { row, dtype: kind.name.clone(), block });
    }
    (elements / block).checked_mul(bytes).map(Some).ok_or_else(size)
}
