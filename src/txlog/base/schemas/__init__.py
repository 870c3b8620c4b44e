"""Schemas of typed topics: their values, the order of versions, bytes to columns and back.

A leaf: it knows neither stores nor topics. The first value of type avro loads fastavro; pydantic is
used only if the caller has loaded it.

Contents:

    classes      schemas of dataclasses, msgspec structs, pydantic models and Arrow schemas
    columns      values of Python as columns of Arrow, and back
    forms        encodings of one record in bytes: JSON or Avro
    resolution   records of an older version as records of the newest; compatibility of versions
    schema       a schema: an Avro record and its encoding in a value's bytes
    values       a topic's values as records: checked, decoded, encoded; columns of other types cast
"""
