"""What a typed topic's values are: schemas, what may follow what, and bytes to columns and back.

A leaf: it knows neither stores nor topics. fastavro is loaded with the first value of type avro,
pydantic never unless the caller has loaded it.

Contents:

    casts           columns of other types as columns of a schema
    classes         schemas of dataclasses, msgspec structs, pydantic models and Arrow schemas
    columns         values of Python as columns of Arrow, and back
    compatibility   which schema can read what another wrote; the strategies of a topic
    forms           how the bytes of one value hold a record: JSON or Avro
    resolution      records of an older version as records of the newest
    schema          a schema: an Avro record and how a value's bytes hold it
    values          a topic's values as records: checked, decoded, encoded
"""
