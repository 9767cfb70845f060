"""Edits of a program, predicted from its recording and compared with the edited program itself."""
