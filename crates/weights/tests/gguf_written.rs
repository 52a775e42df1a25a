//! GGUF files that are written: they are what was asked for, or nothing at all.

use turbospark_tensor::{DType, Shape};
use turbospark_weights::gguf::{self, Array, NewTensor, Value};
use turbospark_weights::packed::PackError;

#[test]
fn what_is_written_is_read() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("x.gguf");
    let values = [
        Value::U8(1),
        Value::I8(-1),
        Value::U16(2),
        Value::I16(-2),
        Value::U32(3),
        Value::I32(-3),
        Value::U64(4),
        Value::I64(-4),
        Value::F32(0.5),
        Value::F64(-0.25),
        Value::Bool(true),
        Value::String("ü".to_owned()),
        Value::Array(Array::U8(vec![1, 2])),
        Value::Array(Array::I8(vec![-1])),
        Value::Array(Array::U16(vec![1])),
        Value::Array(Array::I16(vec![-1])),
        Value::Array(Array::U32(vec![1])),
        Value::Array(Array::I32(vec![-1])),
        Value::Array(Array::U64(vec![1])),
        Value::Array(Array::I64(vec![-1])),
        Value::Array(Array::F32(vec![1.5])),
        Value::Array(Array::F64(vec![2.5])),
        Value::Array(Array::Bool(vec![true, false])),
        Value::Array(Array::String(vec!["a".to_owned(), String::new()])),
    ];
    let keys: Vec<(String, Value)> = values.into_iter().enumerate().map(|(i, v)| (format!("k.{i}"), v)).collect();
    let tensor = |name: &str, dtype, shape| NewTensor { name: name.to_owned(), dtype, shape };
    let tensors = vec![
        tensor("a", DType::F32, Shape::from([3])),
        tensor("b", DType::Q8_0, Shape::from([2, 3, 32])),
        tensor("c", DType::BF16, Shape::from([1])),
    ];
    let data = [vec![1; 12], vec![2; 204], vec![3; 2]];
    let writer = gguf::Writer::new(&path, &keys, tensors.clone()).unwrap();
    let total = writer.total();
    // In pieces, as a filler gives them.
    let fill = |i: usize, sink: &mut dyn FnMut(&[u8]) -> Result<(), PackError>| data[i].chunks(5).try_for_each(sink);
    writer.write(fill).unwrap();
    assert!(!path.exists());
    writer.finish().unwrap();
    assert_eq!(std::fs::metadata(&path).unwrap().len(), total);
    let set = gguf::open(&path).unwrap();
    let read: Vec<(String, Value)> = set.metadata.iter().map(|(k, v)| (k.to_owned(), v.clone())).collect();
    assert_eq!(read, keys);
    for ((file, got), (want, data)) in set.tensors.iter().zip(tensors.iter().zip(&data)) {
        let dims: Vec<usize> = got.dims.iter().map(|&side| side as usize).collect();
        assert_eq!((&got.name, got.dtype, dims.as_slice()), (&want.name, Some(want.dtype), want.shape.dims()));
        let mut bytes = vec![0; got.length as usize];
        set.files[*file].read_at(got.offset, &mut bytes).unwrap();
        assert_eq!(&bytes, data);
    }
    let refused = gguf::Writer::new(&path, &keys, tensors).unwrap_err().to_string();
    assert!(refused.contains("x.gguf") && refused.contains("already"), "{refused}");
    let abandoned = dir.path().join("y.gguf");
    let writer = gguf::Writer::new(&abandoned, &keys, Vec::new()).unwrap();
    writer.write(|_, _| Ok::<(), PackError>(())).unwrap();
    drop(writer);
    assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 1);
}
